package telemetry

import (
	"log/slog"

	"refundgate/refund"
)

// Call returns the attributes that all events of a call share.
func Call(key refund.CallKey, account string) []slog.Attr {
	return []slog.Attr{
		slog.String(KeyRefundID, key.RefundID),
		slog.String(KeyAccount, account),
		slog.String(KeyKind, string(key.Kind)),
		slog.Int(KeySeq, key.Seq),
		slog.String(KeyCallKey, key.String()),
	}
}
