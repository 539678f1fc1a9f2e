-- +goose Up
-- How often a case of the account reached each final status, counted in the
-- transaction that wrote it. A total only grows, also when a rejected case is
-- corrected and settled again, and costs a reader nothing.
CREATE TABLE IF NOT EXISTS settled_totals (
    account VARCHAR(32) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    status  VARCHAR(16) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    total   BIGINT NOT NULL,
    PRIMARY KEY (account, status)
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4;
