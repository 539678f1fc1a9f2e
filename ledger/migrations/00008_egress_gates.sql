-- +goose Up
-- What an owner's gate was doing when it last proved its ownership: JSON, for
-- people and dashboards; nothing decides by it.
CREATE TABLE IF NOT EXISTS egress_gates (
    account VARCHAR(32) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    epoch   BIGINT NOT NULL,
    gate    TEXT NOT NULL,
    PRIMARY KEY (account)
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4;
