package starter

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"time"

	"refundgate/internal/telemetry"
	"refundgate/provider"
	"refundgate/refund"
)

var (
	problemNotificationsOff = newProblem("notifications-not-configured", http.StatusNotFound, "The account takes no notifications")
	problemBadSignature     = newProblem("bad-signature", http.StatusUnauthorized, "The notification is not signed by the provider, or not now")
	problemBadNotification  = newProblem("malformed-notification", http.StatusBadRequest, "The notification can't be read")
)

// NotificationReader authenticates and reads what an account's provider says.
// See provider.Notices.
type NotificationReader interface {
	Notification(header http.Header, body []byte, now time.Time) (refund.Notice, error)
}

// NoticeStore keeps what providers say. See ledger.Ledger.
type NoticeStore interface {
	AddNotice(ctx context.Context, n refund.Notice) (stored refund.Notice, isNew bool, err error)
}

// notify takes a provider's notification. The signature is what lets it in, so
// there is no token; and it is answered with success only once it is stored,
// so that a provider that repeats what failed loses nothing.
func (a *API) notify(w http.ResponseWriter, r *http.Request) {
	account := r.PathValue("account")
	about := []slog.Attr{slog.String(telemetry.KeyAccount, account)}
	if !serves(a.opts.Accounts, account) {
		problemNotFound.write(w) // not logged: anybody can make up names
		return
	}
	reader, ok := a.opts.Notifications[account]
	if !ok {
		a.refuseNotice(w, r, problemNotificationsOff.with("Set notification_secrets of the account in the configuration."), about...)
		return
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, provider.MaxNotification))
	if err != nil {
		a.refuseNotice(w, r, readProblem(err), about...)
		return
	}
	n, err := reader.Notification(r.Header, body, time.Now())
	if err != nil {
		a.refuseNotice(w, r, notificationProblem(w, err), append(about, slog.Any("error", err))...)
		return
	}

	// From here on it is ours to keep: a provider that hangs up changes nothing.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), ledgerTimeout)
	defer cancel()
	about = append(about, slog.String("event_id", n.EventID))
	stored, isNew, err := a.opts.Ledger.AddNotice(ctx, n)
	var invalid *refund.InvalidError
	switch {
	case errors.As(err, &invalid):
		a.refuseNotice(w, r, problemBadNotification.with("", invalid.Fields...), about...)
		return
	case err != nil:
		p := problemAway.with("It is not certain whether the notification was stored. Sending it again is safe.")
		a.refuseNotice(w, r, p, append(about, slog.Any("error", err))...)
		return
	}
	about = append(about,
		slog.String(telemetry.KeyRefundID, stored.RefundID),
		slog.String("outcome", string(stored.Outcome)),
		slog.String("notice_problem", string(stored.Problem)))
	level, event := slog.LevelInfo, telemetry.EventNoticeDuplicate
	if isNew {
		event = telemetry.EventNoticeStored
		if stored.Problem == refund.ProblemContent {
			level = slog.LevelWarn
		}
		a.opts.WakeTeller()
	}
	telemetry.Event(ctx, a.log, level, event, about...)
	writeJSON(w, http.StatusOK, map[string]string{"status": "stored"})
}

// notificationProblem is the answer to what the account's reader refused. Of a
// bad signature no more is told than that it is one.
func notificationProblem(w http.ResponseWriter, err error) problem {
	var malformed *provider.MalformedError
	if errors.As(err, &malformed) {
		return problemBadNotification.with(malformed.Message)
	}
	w.Header().Set("WWW-Authenticate", `Signature realm="refundgate"`)
	return problemBadSignature
}

// refuseNotice answers with a problem and logs it. attrs hold nothing of the
// body but the event's id, once the signature has proven it.
func (a *API) refuseNotice(w http.ResponseWriter, r *http.Request, p problem, attrs ...slog.Attr) {
	attrs = append(attrs, slog.Int("status", p.Status), slog.String("problem", strings.TrimPrefix(p.Type, problemPrefix)))
	telemetry.Event(r.Context(), a.log, slog.LevelWarn, telemetry.EventNoticeRefused, attrs...)
	p.write(w)
}
