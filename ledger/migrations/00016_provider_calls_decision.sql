-- +goose Up
-- The decision that ordered a call; NULL for an automatic one. Added only if it
-- is missing, so that the step can be repeated; MySQL has no ADD COLUMN IF NOT
-- EXISTS.
SET @ddl = IF(
    EXISTS (SELECT 1 FROM information_schema.columns
            WHERE table_schema = DATABASE() AND table_name = 'provider_calls' AND column_name = 'decision_id'),
    'DO 0',
    'ALTER TABLE provider_calls ADD COLUMN decision_id VARCHAR(128) COLLATE utf8mb4_bin NULL');
PREPARE ddl FROM @ddl;
EXECUTE ddl;
DEALLOCATE PREPARE ddl;
