-- +goose Up
-- What people did to the ownership of an account's egress.
CREATE TABLE IF NOT EXISTS egress_events (
    id      BIGINT NOT NULL AUTO_INCREMENT,
    account VARCHAR(32) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    epoch   BIGINT NOT NULL,
    at      DATETIME(6) NOT NULL,
    actor   VARCHAR(128) NOT NULL,
    action  VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    detail  TEXT NOT NULL,
    PRIMARY KEY (id),
    KEY egress_events_trail (account, at)
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4;
