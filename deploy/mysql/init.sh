#!/bin/sh
# Creates the databases and a user for each of the two that use this server.
# The MySQL image runs it once, on an empty data directory.
set -eu
export MYSQL_PWD="$MYSQL_ROOT_PASSWORD"

mysql --user=root <<SQL
CREATE DATABASE refundgate CHARACTER SET utf8mb4;
CREATE USER 'refundgate'@'%' IDENTIFIED BY '$REFUNDGATE_MYSQL_PASSWORD';
GRANT ALL ON refundgate.* TO 'refundgate'@'%';

CREATE DATABASE temporal CHARACTER SET utf8mb4;
CREATE DATABASE temporal_visibility CHARACTER SET utf8mb4;
CREATE USER 'temporal'@'%' IDENTIFIED BY '$TEMPORAL_MYSQL_PASSWORD';
GRANT ALL ON temporal.* TO 'temporal'@'%';
GRANT ALL ON temporal_visibility.* TO 'temporal'@'%';
SQL
