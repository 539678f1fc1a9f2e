-- +goose Up
-- How many cases are open and since when, answered from the index alone, so that
-- a backlog of a million can be watched. Added only if it is missing, as the
-- index of the step before.
SET @ddl = IF(
    EXISTS (SELECT 1 FROM information_schema.statistics
            WHERE table_schema = DATABASE() AND table_name = 'refunds' AND index_name = 'refunds_open'),
    'DO 0',
    'ALTER TABLE refunds ADD KEY refunds_open (status, account, accepted_at)');
PREPARE ddl FROM @ddl;
EXECUTE ddl;
DEALLOCATE PREPARE ddl;
