-- +goose Up
-- Who owns, or last owned, the right to send for an account. epoch counts the
-- owners; an intent is only written under the current one. That the owner
-- still holds the right is not in this row but in the server's named lock.
CREATE TABLE IF NOT EXISTS egress_owners (
    account     VARCHAR(32) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    epoch       BIGINT NOT NULL,
    holder      VARCHAR(255) NOT NULL,
    acquired_at DATETIME(6) NOT NULL,
    seen_at     DATETIME(6) NOT NULL,
    released_at DATETIME(6) NULL,
    PRIMARY KEY (account)
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4;
