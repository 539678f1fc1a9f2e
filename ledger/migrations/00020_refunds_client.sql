-- +goose Up
-- The client of the intake API that submitted the refund and may look it up;
-- '' while none has: it came by the inbox, by the command line, or its workflow
-- was started directly. Added only if it is missing: a step may be repeated.
SET @ddl = IF(
    EXISTS (SELECT 1 FROM information_schema.columns
            WHERE table_schema = DATABASE() AND table_name = 'refunds' AND column_name = 'client'),
    'DO 0',
    'ALTER TABLE refunds ADD COLUMN client VARCHAR(64) COLLATE utf8mb4_bin NOT NULL DEFAULT '''',
        ADD KEY refunds_client (client, accepted_at)');
PREPARE ddl FROM @ddl;
EXECUTE ddl;
DEALLOCATE PREPARE ddl;
