-- +goose Up
-- How long an account's latest calls took, answered from the index alone. It is
-- added only if it is missing, so that the step can be repeated; MySQL has no
-- ADD KEY IF NOT EXISTS.
SET @ddl = IF(
    EXISTS (SELECT 1 FROM information_schema.statistics
            WHERE table_schema = DATABASE() AND table_name = 'provider_calls' AND index_name = 'provider_calls_latency'),
    'DO 0',
    'ALTER TABLE provider_calls ADD KEY provider_calls_latency (account, kind, started_at, finished_at, budget)');
PREPARE ddl FROM @ddl;
EXECUTE ddl;
DEALLOCATE PREPARE ddl;
