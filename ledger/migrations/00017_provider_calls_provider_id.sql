-- +goose Up
-- Whose a provider's refund id is, from the answers. Added only if it is
-- missing, as the column of the step before.
SET @ddl = IF(
    EXISTS (SELECT 1 FROM information_schema.statistics
            WHERE table_schema = DATABASE() AND table_name = 'provider_calls' AND index_name = 'provider_calls_provider_id'),
    'DO 0',
    'ALTER TABLE provider_calls ADD KEY provider_calls_provider_id (account, provider_refund_id)');
PREPARE ddl FROM @ddl;
EXECUTE ddl;
DEALLOCATE PREPARE ddl;
