-- +goose Up
-- The exact bytes of the first request of a generation and the key they were
-- sent under. Every later send of the generation repeats both.
CREATE TABLE IF NOT EXISTS refund_requests (
    refund_id       VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    generation      INT NOT NULL,
    account         VARCHAR(32) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    idempotency_key VARCHAR(128) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    body            MEDIUMBLOB NOT NULL,
    created_at      DATETIME(6) NOT NULL,
    PRIMARY KEY (refund_id, generation),
    UNIQUE KEY refund_requests_key (account, idempotency_key),
    CONSTRAINT refund_requests_refund FOREIGN KEY (refund_id) REFERENCES refunds (refund_id)
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4;
