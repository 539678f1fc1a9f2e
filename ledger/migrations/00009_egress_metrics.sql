-- +goose Up
-- What an owner had measured of its account's calls when it last proved its
-- ownership: metrics in Prometheus's text format, for serve to show. (A table of
-- its own because MySQL can't add a column only if it is missing.)
CREATE TABLE IF NOT EXISTS egress_metrics (
    account VARCHAR(32) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    epoch   BIGINT NOT NULL,
    metrics MEDIUMTEXT NOT NULL,
    PRIMARY KEY (account)
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4;
