package drill

import (
	"context"
	"time"

	"refundgate/drill/record"
	"refundgate/drill/report"
)

// scenario is one part of the drill.
type scenario struct {
	name, requirement, title string
	story                    string
	full, short              time.Duration // about how long it takes
	// run carries it out and returns when no case is open but those with people.
	run func(context.Context, *stage) error
	// checks are those beside record.Promises.
	checks func(*stage, record.Record) []report.Check
}

func (s scenario) estimate(short bool) time.Duration {
	if short {
		return s.short
	}
	return s.full
}

// scenarios are all there are. The one that looks at all calls comes last.
var scenarios = []scenario{
	sequence, pausedSender, kinds, ownership, crash, review, backlog, outage, budget,
}
