-- +goose Up
-- A case's trail beside its calls. digest is computed over the event's content
-- and time: writing the same event again changes nothing.
CREATE TABLE IF NOT EXISTS case_events (
    id        BIGINT NOT NULL AUTO_INCREMENT,
    refund_id VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    at        DATETIME(6) NOT NULL,
    actor     VARCHAR(128) NOT NULL,
    action    VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    detail    TEXT NOT NULL,
    digest    BINARY(32) NOT NULL,
    PRIMARY KEY (id),
    UNIQUE KEY case_events_digest (refund_id, digest),
    KEY case_events_trail (refund_id, at),
    CONSTRAINT case_events_refund FOREIGN KEY (refund_id) REFERENCES refunds (refund_id)
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4;
