-- +goose Up
-- What people decided. id dedupes: it is an update's id or an idempotency key.
-- owner, status and evidence are '' where they don't go with the action.
CREATE TABLE IF NOT EXISTS decisions (
    refund_id  VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    id         VARCHAR(128) COLLATE utf8mb4_bin NOT NULL,
    generation INT NOT NULL,
    action     VARCHAR(16) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    actor      VARCHAR(128) COLLATE utf8mb4_bin NOT NULL,
    reason     VARCHAR(1000) COLLATE utf8mb4_bin NOT NULL,
    owner      VARCHAR(128) COLLATE utf8mb4_bin NOT NULL,
    status     VARCHAR(16) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    evidence   VARCHAR(1000) COLLATE utf8mb4_bin NOT NULL,
    at         DATETIME(6) NOT NULL,
    PRIMARY KEY (refund_id, id),
    CONSTRAINT decisions_refund FOREIGN KEY (refund_id) REFERENCES refunds (refund_id)
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4;
