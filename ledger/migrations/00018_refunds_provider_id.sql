-- +goose Up
-- Whose a provider's refund id is, from the cases. Added only if it is missing,
-- as the index of the step before.
SET @ddl = IF(
    EXISTS (SELECT 1 FROM information_schema.statistics
            WHERE table_schema = DATABASE() AND table_name = 'refunds' AND index_name = 'refunds_provider_id'),
    'DO 0',
    'ALTER TABLE refunds ADD KEY refunds_provider_id (account, provider_refund_id)');
PREPARE ddl FROM @ddl;
EXECUTE ddl;
DEALLOCATE PREPARE ddl;
