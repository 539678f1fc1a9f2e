#!/bin/sh
# Creates or upgrades Temporal's two schemas; the connection comes from the
# SQL_* variables. Running it again changes nothing.
set -eu
schemas=/etc/temporal/schema/mysql/v8

for pair in temporal:temporal temporal_visibility:visibility; do
	export SQL_DATABASE="${pair%%:*}"
	temporal-sql-tool setup-schema -v 0.0
	temporal-sql-tool update-schema -d "$schemas/${pair##*:}/versioned"
done
