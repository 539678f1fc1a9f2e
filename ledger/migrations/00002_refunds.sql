-- +goose Up
-- One row per case. Amounts are integer minor units; payment_amount is in the
-- refund's currency. Times are UTC. review_reason and owner are '' when there
-- is none, so that they can be filtered on like any other value.
CREATE TABLE IF NOT EXISTS refunds (
    refund_id           VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    account             VARCHAR(32) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    order_id            VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    payment_id          VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    amount              BIGINT NOT NULL,
    currency            CHAR(3) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    payment_amount      BIGINT NULL,
    reason              VARCHAR(1000) NOT NULL,
    requested_by        VARCHAR(128) NOT NULL,
    fingerprint         CHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    status              VARCHAR(16) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    review_reason       VARCHAR(32) CHARACTER SET ascii COLLATE ascii_bin NOT NULL DEFAULT '',
    owner               VARCHAR(128) COLLATE utf8mb4_bin NOT NULL DEFAULT '',
    generation          INT NOT NULL DEFAULT 1,
    attempts            INT NOT NULL DEFAULT 0,
    provider_refund_id  VARCHAR(255) COLLATE utf8mb4_bin NOT NULL DEFAULT '',
    version             BIGINT NOT NULL DEFAULT 1,
    accepted_at         DATETIME(6) NOT NULL,
    deadline_at         DATETIME(6) NOT NULL,
    updated_at          DATETIME(6) NOT NULL,
    closed_at           DATETIME(6) NULL,
    workflow_started_at DATETIME(6) NULL,
    PRIMARY KEY (refund_id),
    -- the lists, newest first (InnoDB appends refund_id to each)
    KEY refunds_accepted (accepted_at),
    KEY refunds_status (status, accepted_at),
    KEY refunds_account (account, accepted_at),
    KEY refunds_owner (owner, accepted_at),
    -- what a payment's refunds add up to
    KEY refunds_payment (account, payment_id),
    -- what the relay still has to start
    KEY refunds_unstarted (workflow_started_at, accepted_at)
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4;
