package standin

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"mime"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// maxBody bounds a request's body, in bytes.
const maxBody = 1 << 20

// resetDelay lets the client read the first half of an answer before the RST
// arrives, which throws away whatever is still unread.
const resetDelay = 50 * time.Millisecond

// serveAPI answers one request of the provider's API and records it.
func (s *Server) serveAPI(w http.ResponseWriter, r *http.Request) {
	c := connOf(r.Context())
	body, err := io.ReadAll(io.LimitReader(r.Body, maxBody+1))
	first, arrived := c.ended()
	reference := s.reference(r, body)
	var f Fault
	if err == nil {
		f, _ = s.plan.next(r.Method, reference)
	}
	entry := s.record.add(Request{
		Connection:       c.number,
		ConnectionMonoNS: first,
		ArrivedMonoNS:    arrived,
		ArrivedAt:        time.Now().UTC(),
		Proto:            r.Proto,
		Method:           r.Method,
		Path:             r.URL.RequestURI(),
		Key:              r.Header.Get("Idempotency-Key"),
		Reference:        reference,
		BodySHA256:       hash(body),
		BodyBytes:        len(body),
		Fault:            f.Kind,
	})
	if err != nil {
		s.record.finish(entry, AnswerClientGone, 0)
		return
	}
	acc := s.process(r, body, f)
	s.record.update(entry, func(e *Request) { e.Executed, e.Replayed = acc.executed, acc.replayed })
	sleep(s.ctx, ms(f.DelayMS)-time.Duration(monotonic()-arrived))
	if f.Kind == Hang {
		<-r.Context().Done()
	}
	acc.release()
	if r.Context().Err() != nil {
		s.record.finish(entry, AnswerClientGone, 0)
		panic(http.ErrAbortHandler)
	}
	s.deliver(w, entry, f, misanswer(r, f, acc.reply))
}

// reference returns our reference of the refund that a request is about, or
// "" if it names none.
func (s *Server) reference(r *http.Request, body []byte) string {
	if r.Method == http.MethodPost {
		var sub submission
		_ = json.Unmarshal(body, &sub) // what can't be read has no reference
		return sub.Reference
	}
	if id, ok := strings.CutPrefix(r.URL.Path, "/v1/refunds/"); ok {
		refund, _ := s.refunds.get(id)
		return refund.Reference
	}
	return r.URL.Query().Get("reference")
}

// process does what the contract says, unless the fault keeps the request
// from being accepted at all.
func (s *Server) process(r *http.Request, body []byte, f Fault) accepted {
	switch f.Kind {
	case Busy:
		rep := errorReply(http.StatusServiceUnavailable, "temporarily_unavailable")
		rep.RetryAfter = f.RetryAfter
		return answerOnly(rep)
	case RateLimit:
		rep := errorReply(http.StatusTooManyRequests, "rate_limited")
		rep.RetryAfter = f.RetryAfter
		return answerOnly(rep)
	case Deny:
		return answerOnly(errorReply(f.Status, "denied"))
	}
	if !f.accepts() {
		return answerOnly(errorReply(http.StatusInternalServerError, "not_processed"))
	}
	token, isBearer := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	if !isBearer || token == "" || s.options.APIKey != "" && token != s.options.APIKey {
		return answerOnly(errorReply(http.StatusUnauthorized, "unauthorized"))
	}
	id, byID := strings.CutPrefix(r.URL.Path, "/v1/refunds/")
	switch {
	case r.Method == http.MethodPost && r.URL.Path == "/v1/refunds":
		return s.create(r, body, f)
	case r.Method == http.MethodGet && r.URL.Path == "/v1/refunds":
		return answerOnly(s.find(r.URL.Query().Get("reference")))
	case r.Method == http.MethodGet && byID:
		refund, ok := s.refunds.get(id)
		if !ok {
			return answerOnly(errorReply(http.StatusNotFound, "not_found"))
		}
		return answerOnly(jsonReply(http.StatusOK, refund))
	}
	return answerOnly(errorReply(http.StatusNotFound, "no_such_endpoint"))
}

func (s *Server) create(r *http.Request, body []byte, f Fault) accepted {
	refused := answerOnly(errorReply(http.StatusUnprocessableEntity, "invalid_request"))
	if len(body) > maxBody {
		return refused
	}
	if mediaType, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || mediaType != "application/json" {
		return refused
	}
	acc, err := s.refunds.submit(r.Header.Get("Idempotency-Key"), body, f)
	if err != nil {
		return answerOnly(errorReply(http.StatusInternalServerError, "storage_failed"))
	}
	return acc
}

func (s *Server) find(reference string) reply {
	if reference == "" {
		return errorReply(http.StatusUnprocessableEntity, "invalid_request")
	}
	data := []Refund{}
	for _, r := range s.refunds.list(func(r refundState) bool { return r.Reference == reference }) {
		data = append(data, r.Refund)
	}
	return jsonReply(http.StatusOK, map[string][]Refund{"data": data})
}

// misanswer replaces the right answer by the fault's.
func misanswer(r *http.Request, f Fault, right reply) reply {
	switch f.Kind {
	case Garbage:
		return reply{Status: http.StatusOK, ContentType: "application/json", Body: cmp.Or(f.Body, "\x00\xff{\"id\":]")}
	case Redirect:
		return reply{Status: cmp.Or(f.Status, http.StatusTemporaryRedirect), Location: cmp.Or(f.Location, r.URL.RequestURI())}
	case Answer:
		return reply{
			Status:      f.Status,
			ContentType: cmp.Or(f.ContentType, "application/json"),
			RetryAfter:  f.RetryAfter,
			Body:        f.Body,
		}
	}
	return right
}

// deliver gives the client its answer, or what the fault makes of it. The
// record is written first, so that a client that has its answer finds it.
func (s *Server) deliver(w http.ResponseWriter, entry *Request, f Fault, rep reply) {
	switch f.Kind {
	case Drop:
		s.record.finish(entry, AnswerReset, 0)
		hijack(w).reset()
	case AcceptThenDrop:
		s.record.finish(entry, AnswerDropped, 0)
		_ = hijack(w).Close()
	case AcceptThenReset:
		c := hijack(w)
		writeHalf(c, rep)
		s.record.finish(entry, AnswerReset, rep.Status)
		sleep(s.ctx, resetDelay)
		c.reset()
	case Partial:
		c := hijack(w)
		s.record.finish(entry, AnswerPartial, rep.Status)
		writeHalf(c, rep)
		_ = c.Close()
	default:
		s.record.finish(entry, AnswerSent, rep.Status)
		rep.write(w)
	}
}

func (rep reply) write(w http.ResponseWriter) {
	h := w.Header()
	h["Content-Type"] = nil // no guessing by net/http
	if rep.ContentType != "" {
		h.Set("Content-Type", rep.ContentType)
	}
	if rep.RetryAfter != "" {
		h.Set("Retry-After", rep.RetryAfter)
	}
	if rep.Location != "" {
		h.Set("Location", rep.Location)
	}
	if rep.Status != http.StatusNoContent && rep.Status != http.StatusNotModified {
		h.Set("Content-Length", strconv.Itoa(len(rep.Body)))
	}
	w.WriteHeader(rep.Status)
	_, _ = io.WriteString(w, rep.Body) // the client may have gone
}

// writeHalf sends the head of the whole answer and half of its body.
func writeHalf(c *conn, rep reply) {
	promised := max(len(rep.Body), 1)
	_, _ = fmt.Fprintf(c, "HTTP/1.1 %d %s\r\nContent-Type: %s\r\nContent-Length: %d\r\n\r\n%s",
		rep.Status, http.StatusText(rep.Status), rep.ContentType, promised, rep.Body[:len(rep.Body)/2])
}

// hijack takes the connection away from net/http. Everything that the client
// sent has been read, so closing it ends the stream in the way asked for.
func hijack(w http.ResponseWriter) *conn {
	c, _, err := http.NewResponseController(w).Hijack()
	if err != nil { // HTTP/1.1 connections can always be taken, once
		panic(err)
	}
	return c.(*conn)
}
