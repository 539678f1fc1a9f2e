-- +goose Up
-- Actions that were refused, under their ids: one that comes once more, by a
-- reset that delivers it again or by a repeat, stays refused, although the case
-- may allow it by then. Whoever ordered it has been told that it was not done.
CREATE TABLE IF NOT EXISTS refusals (
    refund_id VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    id        VARCHAR(128) COLLATE utf8mb4_bin NOT NULL,
    why       VARCHAR(1000) COLLATE utf8mb4_bin NOT NULL,
    at        DATETIME(6) NOT NULL,
    PRIMARY KEY (refund_id, id),
    CONSTRAINT refusals_refund FOREIGN KEY (refund_id) REFERENCES refunds (refund_id)
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4;
