-- +goose Up
-- How many cases an account settled lately, answered from the index alone.
-- Added only if it is missing, so that the step can be repeated.
SET @ddl = IF(
    EXISTS (SELECT 1 FROM information_schema.statistics
            WHERE table_schema = DATABASE() AND table_name = 'refunds' AND index_name = 'refunds_closed'),
    'DO 0',
    'ALTER TABLE refunds ADD KEY refunds_closed (account, closed_at)');
PREPARE ddl FROM @ddl;
EXECUTE ddl;
DEALLOCATE PREPARE ddl;
