// Package telemetry is how refundgate writes down what happens: structured
// log lines, and the names of the events and attributes in them.
//
// A line about an event carries its name as the attribute "event", so that a
// reader need not parse messages. No line holds card data, tokens, bodies or
// a refund's free text.
package telemetry

import (
	"context"
	"fmt"
	"io"
	"log/slog"

	temporallog "go.temporal.io/sdk/log"
)

// Format is how log lines are written.
type Format string

const (
	FormatJSON Format = "json" // one JSON object a line, for machines
	FormatText Format = "text" // key=value pairs, for a terminal
)

// Set makes a Format usable as a command's flag.
func (f *Format) Set(s string) error {
	switch Format(s) {
	case FormatJSON, FormatText:
		*f = Format(s)
		return nil
	}
	return fmt.Errorf("the log format is json or text, not %q", s)
}

func (f Format) String() string { return string(f) }

// Type names the flag's kind of value in a command's help.
func (Format) Type() string { return "json|text" }

// NewLogger returns a logger that writes lines of the given level and above
// to w, which is stderr in every command. Times are in UTC.
func NewLogger(w io.Writer, format Format, level slog.Leveler) *slog.Logger {
	opts := &slog.HandlerOptions{Level: level, ReplaceAttr: utc}
	if format == FormatText {
		return slog.New(slog.NewTextHandler(w, opts))
	}
	return slog.New(slog.NewJSONHandler(w, opts))
}

// utc puts every time in UTC, the line's own included, whatever the process's
// time zone is.
func utc(_ []string, a slog.Attr) slog.Attr {
	if a.Value.Kind() == slog.KindTime {
		a.Value = slog.TimeValue(a.Value.Time().UTC())
	}
	return a
}

// Event logs one of the events above with its attributes.
func Event(ctx context.Context, log *slog.Logger, level slog.Level, name string, attrs ...slog.Attr) {
	log.LogAttrs(ctx, level, name, append([]slog.Attr{slog.String(KeyEvent, name)}, attrs...)...)
}

// TemporalLogger lets the Temporal SDK write to the same log; its lines have
// no event and are marked as component=temporal.
func TemporalLogger(log *slog.Logger) temporallog.Logger {
	return temporallog.NewStructuredLogger(log.With("component", "temporal"))
}
