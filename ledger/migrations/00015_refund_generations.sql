-- +goose Up
-- What each generation of a corrected case asks for: content is the refund as
-- JSON. A case that was never corrected has no rows here; its refunds row says
-- everything. actor, reason and at are of the acceptance or the correction.
CREATE TABLE IF NOT EXISTS refund_generations (
    refund_id   VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    generation  INT NOT NULL,
    fingerprint CHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    content     TEXT NOT NULL,
    at          DATETIME(6) NOT NULL,
    actor       VARCHAR(128) NOT NULL,
    reason      VARCHAR(1000) NOT NULL,
    PRIMARY KEY (refund_id, generation),
    CONSTRAINT refund_generations_refund FOREIGN KEY (refund_id) REFERENCES refunds (refund_id)
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4;
