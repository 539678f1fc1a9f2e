-- +goose Up
-- One row per payment that refunds were asked for. It is what a new refund
-- locks, so that two refunds of one payment are weighed one after the other.
-- amount and currency stay NULL until a submission states the payment's amount.
CREATE TABLE IF NOT EXISTS payments (
    account    VARCHAR(32) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    payment_id VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    amount     BIGINT NULL,
    currency   CHAR(3) CHARACTER SET ascii COLLATE ascii_bin NULL,
    PRIMARY KEY (account, payment_id)
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4;
