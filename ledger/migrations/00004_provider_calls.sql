-- +goose Up
-- One row per call key, committed before the first byte of the call leaves.
-- NULL means "nothing recorded": a row without an outcome is an intent whose
-- call may or may not have been sent. token names the transaction that wrote
-- the intent; rows that never had an intent have none.
CREATE TABLE IF NOT EXISTS provider_calls (
    refund_id          VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    generation         INT NOT NULL,
    kind               VARCHAR(16) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    seq                INT NOT NULL,
    origin             VARCHAR(16) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    account            VARCHAR(32) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    epoch              BIGINT NOT NULL,
    token              BINARY(16) NULL,
    intent_at          DATETIME(6) NOT NULL,
    started_at         DATETIME(6) NULL,
    started_mono_ns    BIGINT NULL,
    in_flight          INT NULL,
    finished_at        DATETIME(6) NULL,
    outcome            VARCHAR(16) CHARACTER SET ascii COLLATE ascii_bin NULL,
    code               VARCHAR(64) COLLATE utf8mb4_bin NULL,
    http_status        INT NULL,
    budget             VARCHAR(16) CHARACTER SET ascii COLLATE ascii_bin NULL,
    provider_refund_id VARCHAR(255) COLLATE utf8mb4_bin NULL,
    retry_at           DATETIME(6) NULL,
    account_wide       BOOLEAN NOT NULL DEFAULT FALSE,
    ambiguous          BOOLEAN NOT NULL DEFAULT FALSE,
    never_resend       BOOLEAN NOT NULL DEFAULT FALSE,
    detail             VARCHAR(300) NULL,
    PRIMARY KEY (refund_id, generation, kind, seq),
    UNIQUE KEY provider_calls_token (token),
    CONSTRAINT provider_calls_refund FOREIGN KEY (refund_id) REFERENCES refunds (refund_id)
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4;
