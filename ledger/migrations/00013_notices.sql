-- +goose Up
-- What providers told us without being asked. refund_id is NULL while a notice
-- belongs to no case; tried_at is when a case was last looked for, matched_at
-- when one was found, told_at when its workflow was told. problem is '' for a
-- notice that is a fact about its case. The texts are the provider's own, as
-- far as they fit: they are compared, never relied on.
CREATE TABLE IF NOT EXISTS notices (
    id                 BIGINT NOT NULL AUTO_INCREMENT,
    account            VARCHAR(32) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    source             VARCHAR(16) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    event_id           VARCHAR(255) COLLATE utf8mb4_bin NOT NULL,
    provider_refund_id VARCHAR(255) COLLATE utf8mb4_bin NOT NULL,
    reference          VARCHAR(255) COLLATE utf8mb4_bin NOT NULL,
    payment_id         VARCHAR(255) COLLATE utf8mb4_bin NOT NULL,
    amount             BIGINT NOT NULL,
    currency           VARCHAR(16) COLLATE utf8mb4_bin NOT NULL,
    outcome            VARCHAR(16) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    code               VARCHAR(64) COLLATE utf8mb4_bin NOT NULL,
    said_at            DATETIME(6) NOT NULL,
    received_at        DATETIME(6) NOT NULL,
    tried_at           DATETIME(6) NOT NULL,
    refund_id          VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NULL,
    generation         INT NOT NULL DEFAULT 0,
    problem            VARCHAR(16) CHARACTER SET ascii COLLATE ascii_bin NOT NULL DEFAULT '',
    matched_at         DATETIME(6) NULL,
    told_at            DATETIME(6) NULL,
    PRIMARY KEY (id),
    UNIQUE KEY notices_event (account, source, event_id),
    -- whose an id of the provider is
    KEY notices_provider_id (account, provider_refund_id),
    -- a case's notices, and those of no case, in the order of storing
    KEY notices_case (refund_id),
    -- those of no case, least recently tried first
    KEY notices_sweep (refund_id, tried_at),
    -- what no workflow was told of
    KEY notices_untold (told_at, refund_id),
    CONSTRAINT notices_refund FOREIGN KEY (refund_id) REFERENCES refunds (refund_id)
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4;
