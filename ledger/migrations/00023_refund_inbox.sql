-- +goose Up
-- Refunds that order services hand in with a row in their own transaction. They
-- set refund_id and payload, which is what the intake API takes; the rest is
-- ours. A row is gone once its refund is accepted. Until due_at it is left
-- alone; one with refused_at set waits for people, and refusal says why.
CREATE TABLE IF NOT EXISTS refund_inbox (
    id         BIGINT NOT NULL AUTO_INCREMENT,
    refund_id  VARCHAR(255) COLLATE utf8mb4_bin NOT NULL,
    payload    JSON NOT NULL,
    created_at DATETIME(6) NOT NULL DEFAULT (UTC_TIMESTAMP(6)),
    due_at     DATETIME(6) NOT NULL DEFAULT '1970-01-01 00:00:00',
    refused_at DATETIME(6) NULL,
    refusal    VARCHAR(1000) COLLATE utf8mb4_bin NOT NULL DEFAULT '',
    PRIMARY KEY (id),
    -- what is due, in the order in which it came
    KEY refund_inbox_due (refused_at, due_at, id)
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4;
