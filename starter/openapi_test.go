package starter

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/goccy/go-yaml"
	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/stretchr/testify/require"

	"golang.org/x/time/rate"

	"refundgate/internal/config"
	"refundgate/internal/testenv"
	"refundgate/ledger"
	"refundgate/provider"
	"refundgate/refund"
)

// document is openapi.yaml with its schemas ready to be used.
type document struct {
	t        *testing.T
	root     map[string]any
	compiler *jsonschema.Compiler
}

func newDocument(t *testing.T) *document {
	t.Helper()
	asJSON, err := yaml.YAMLToJSON(openAPIDocument)
	require.NoError(t, err)
	root, err := jsonschema.UnmarshalJSON(bytes.NewReader(asJSON))
	require.NoError(t, err)
	d := &document{t: t, root: root.(map[string]any), compiler: jsonschema.NewCompiler()}
	closeValues(d.root)
	d.compiler.AssertFormat()
	require.NoError(t, d.compiler.AddResource("mem:///openapi.json", d.root))
	return d
}

// closeValues forbids what the document doesn't tell of in whatever a value
// can be. The document itself leaves that open: answers may grow.
func closeValues(node any) {
	if list, ok := node.([]any); ok {
		for _, v := range list {
			closeValues(v)
		}
	}
	m, _ := node.(map[string]any)
	shut := func(schema any) {
		if s, ok := schema.(map[string]any); ok {
			s["unevaluatedProperties"] = false
		}
	}
	for name, v := range m {
		switch name {
		case "schema", "items", "additionalProperties":
			shut(v)
		case "properties":
			for _, p := range v.(map[string]any) {
				shut(p)
			}
		}
		closeValues(v)
	}
}

// at returns what a JSON pointer leads to, through references; at is where
// that is itself.
func (d *document) at(pointer string) (v any, at string) {
	v = d.root
	for _, part := range strings.Split(pointer, "/")[1:] {
		if list, ok := v.([]any); ok {
			n, err := strconv.Atoi(part)
			require.NoError(d.t, err, pointer)
			v = list[n]
		} else {
			m, _ := v.(map[string]any)
			next, ok := m[strings.NewReplacer("~1", "/", "~0", "~").Replace(part)]
			require.True(d.t, ok, "%s isn't in the document", pointer)
			v = next
		}
		at += "/" + part
		if m, ok := v.(map[string]any); ok {
			if ref, ok := m["$ref"].(string); ok && len(m) == 1 {
				v, at = d.at(strings.TrimPrefix(ref, "#"))
			}
		}
	}
	return v, at
}

func (d *document) schema(pointer string) *jsonschema.Schema {
	d.t.Helper()
	_, at := d.at(pointer)
	s, err := d.compiler.Compile("mem:///openapi.json#" + at)
	require.NoError(d.t, err)
	return s
}

// accepts tells whether the schema allows the JSON text.
func accepts(s *jsonschema.Schema, content []byte) error {
	v, err := jsonschema.UnmarshalJSON(bytes.NewReader(content))
	if err != nil {
		return err
	}
	return s.Validate(v)
}

// operation is a call that the document tells of.
type operation struct{ id, method, path, at string }

func (d *document) operations() map[string]operation {
	all := map[string]operation{}
	for path, item := range d.root["paths"].(map[string]any) {
		for method, op := range item.(map[string]any) {
			if method != "parameters" {
				id := op.(map[string]any)["operationId"].(string)
				require.NotContains(d.t, all, id)
				all[id] = operation{id, strings.ToUpper(method), path, "/paths/" + strings.ReplaceAll(path, "/", "~1") + "/" + method}
			}
		}
	}
	return all
}

// types are the problem types of a response.
func (d *document) types(response string) (names []string) {
	r, at := d.at(response)
	content, _ := r.(map[string]any)["content"].(map[string]any)
	if content["application/problem+json"] == nil {
		return nil
	}
	enum, _ := d.at(at + "/content/application~1problem+json/schema/allOf/1/properties/type/enum")
	for _, v := range enum.([]any) {
		names = append(names, strings.TrimPrefix(v.(string), problemPrefix))
	}
	return names
}

// check holds an answer against what the document says of the operation, and
// returns what was seen: "submitRefund 422 invalid-refund".
func (d *document) check(op operation, a answer) string {
	d.t.Helper()
	about := fmt.Sprintf("%s %d", op.id, a.status)
	r, at := d.at(fmt.Sprintf("%s/responses/%d", op.at, a.status))
	response := r.(map[string]any)
	mediaType, _, _ := strings.Cut(a.header.Get("Content-Type"), ";")
	require.Contains(d.t, response["content"], mediaType, about)
	content := a.body
	if !strings.HasSuffix(mediaType, "json") {
		var err error
		content, err = json.Marshal(string(a.body))
		require.NoError(d.t, err)
	}
	body := d.schema(at + "/content/" + strings.ReplaceAll(mediaType, "/", "~1") + "/schema")
	require.NoError(d.t, accepts(body, content), "%s: %s", about, a.body)

	headers, _ := response["headers"].(map[string]any)
	for _, name := range []string{"Location", "Retry-After", "WWW-Authenticate", "Allow", "Cache-Control"} {
		value := a.header.Get(name)
		if headers[name] == nil {
			require.Empty(d.t, value, "%s has the header %s", about, name)
			continue
		}
		h, at := d.at(at + "/headers/" + name)
		if required, _ := h.(map[string]any)["required"].(bool); required || value != "" {
			require.NoError(d.t, d.schema(at+"/schema").Validate(value), "%s: %s", about, name)
		}
	}
	if mediaType == "application/problem+json" {
		var p problem
		require.NoError(d.t, json.Unmarshal(a.body, &p))
		about += " " + p.name()
	}
	return about
}

// notProduced are answers that TestOpenAPI_Answers doesn't make, with why not.
var notProduced = map[string]string{
	"metrics 500":                      "the process always measures something",
	"metrics 503":                      "takes many scrapes at the same moment",
	"correctCase 422 payment-exceeded": "as submitRefund's; see TestActionsThatFail",
	"correctCase 422 payment-mismatch": "as submitRefund's; see TestActionsThatFail",
}

// TestOpenAPI_Answers: every answer is as the document says, and the document
// says of none that is never given.
func TestOpenAPI_Answers(t *testing.T) {
	t.Parallel()
	d := newDocument(t)
	ops := d.operations()
	seen := map[string]bool{}
	db := testenv.OwnMariaDB(t)
	require.NoError(t, db.CreateDatabase(t.Context(), "refunds"))
	desk := &fakeDesk{}
	i := newDeskIntake(t, newLedger(t, db.DSN("refunds")), nil, desk)
	try := func(id, token, query, content string, header ...string) {
		t.Helper()
		op, ok := ops[id]
		require.True(t, ok, id)
		path := strings.NewReplacer("{id}", "r-1", "{account}", "main").Replace(op.path)
		if p, is := strings.CutPrefix(query, "/"); is {
			path, query = "/"+p, ""
		}
		a := i.do(op.method, path+query, token, content, header...)
		seen[d.check(op, a)] = true
		if a.status < 300 && content != "" {
			require.NoError(t, accepts(d.schema(op.at+"/requestBody/content/application~1json/schema"), []byte(content)), content)
		}
	}
	change := func(pairs ...string) string {
		m := map[string]string{}
		for n := 0; n < len(pairs); n += 2 {
			m[pairs[n]] = pairs[n+1]
		}
		return body(m)
	}
	huge := strings.Repeat(" ", maxBody+1)
	sent := notification()

	try("submitRefund", ordersToken, "", change("payment_amount", `{"value":2000,"currency":"TWD"}`))
	try("submitRefund", ordersToken, "", change("payment_amount", `{"value":2000,"currency":"TWD"}`))
	try("submitRefund", ordersToken, "", change("reason", `"else"`))
	try("submitRefund", ordersToken, "", change("refund_id", `"r-2"`, "payment_amount", `{"value":2000,"currency":"TWD"}`))
	try("submitRefund", ordersToken, "", change("refund_id", `"r-2"`, "payment_amount", `{"value":3000,"currency":"TWD"}`))
	try("submitRefund", ordersToken, "", "{}")
	try("listRefunds", ordersToken, "?limit=0", "")
	try("showRefund", ordersToken, "/v1/refunds/none", "")
	try("notify", "", "", sent, "Provider-Signature", signed(newSecret, sent, 0))
	try("notify", "", "", sent)
	try("notify", "", "", "[]", "Provider-Signature", signed(newSecret, "[]", 0))
	try("notify", "", "", strings.Repeat(" ", provider.MaxNotification+1))
	try("notify", "", "/v1/providers/other/notifications", sent)
	try("notify", "", "/v1/providers/second/notifications", sent)
	for _, a := range refund.Actions {
		id := string(a) + "Case"
		desk.err = nil
		try(id, reviewToken, "", goodActions[a])
		try(id, reviewToken, "", goodActions[a], "Idempotency-Key", "a b")
		try(id, reviewToken, "/v1/refunds/-/actions/"+string(a), goodActions[a])
		desk.err = &ledger.ActionRefusedError{Why: "closed"}
		try(id, reviewToken, "", goodActions[a])
		desk.err = errors.New("away")
		try(id, reviewToken, "", goodActions[a])
	}
	// Bodies that don't come to their end: too slow, or cut off. The sockets are
	// in TestServerCutsOffSlowBodies and TestProviderThatHangsUpEarly.
	for _, op := range ops {
		if op.method != http.MethodPost {
			continue
		}
		for _, why := range []error{os.ErrDeadlineExceeded, io.ErrUnexpectedEOF} {
			path := strings.NewReplacer("{id}", "r-1", "{account}", "main").Replace(op.path)
			r := httptest.NewRequestWithContext(t.Context(), op.method, path, iotest.ErrReader(why))
			r.Header.Set("Content-Type", "application/json")
			token := reviewToken
			if op.id == "submitRefund" {
				token = ordersToken
			}
			r.Header.Set("Authorization", "Bearer "+token)
			w := httptest.NewRecorder()
			i.api.ServeHTTP(w, r)
			seen[d.check(op, answer{w.Code, w.Header(), w.Body.Bytes()})] = true
		}
	}
	for _, op := range ops {
		if op.method == http.MethodPost && op.id != "notify" {
			token := reviewToken
			if op.id == "submitRefund" {
				token = ordersToken
			}
			try(op.id, token, "", "[]")
			try(op.id, token, "", huge)
			try(op.id, token, "", "{}", "Content-Type", "text/plain")
		}
		o, _ := d.at(op.at)
		allowed := map[string]bool{}
		for _, one := range o.(map[string]any)["security"].([]any) {
			for _, scope := range one.(map[string]any)["bearer"].([]any) {
				allowed[scope.(string)] = true
			}
		}
		if len(allowed) == 0 {
			continue
		}
		try(op.id, "", "", "")
		for scope, token := range map[string]string{config.ScopeWrite: writeToken, config.ScopeRead: readToken, config.ScopeReadAll: auditToken, config.ScopeReview: reviewToken} {
			a := i.do(op.method, strings.ReplaceAll(op.path, "{id}", "r-1"), token, "")
			require.Equal(t, allowed[scope], a.status != http.StatusForbidden, "%s with %s", op.id, scope)
			if a.status == http.StatusForbidden {
				seen[d.check(op, a)] = true
			}
		}
	}
	reading := []string{"listRefunds", "showRefund", "health", "ready", "metrics", "openAPI"}
	for _, id := range reading {
		try(id, ordersToken, "", "")
	}
	a := i.do("DELETE", "/v1/refunds", ordersToken, "")
	require.NoError(t, accepts(d.schema("/components/responses/MethodNotAllowed/content/application~1problem+json/schema"), a.body))

	i.api.opts.Admission = NewAdmission(nil, config.Admission{MaxBacklog: 1}, i.api.opts.Accounts, testDeadline, discard)
	require.NoError(t, i.api.opts.Admission.Place("main").Take())
	try("submitRefund", ordersToken, "", change("refund_id", `"r-3"`))
	i.api.opts.Admission = nil

	require.NoError(t, db.Kill())
	try("submitRefund", ordersToken, "", change("refund_id", `"r-3"`))
	try("notify", "", "", sent, "Provider-Signature", signed(newSecret, sent, 0))
	for _, id := range reading {
		try(id, ordersToken, "", "")
	}

	for n := range i.api.callers {
		i.api.callers[n].limit = rate.NewLimiter(1, 0)
	}
	for _, op := range ops {
		if o, _ := d.at(op.at); len(o.(map[string]any)["security"].([]any)) > 0 {
			try(op.id, reviewToken, "", "")
		}
	}

	for _, op := range ops {
		r, _ := d.at(op.at + "/responses")
		for status := range r.(map[string]any) {
			about := op.id + " " + status
			want := []string{about}
			if types := d.types(op.at + "/responses/" + status); types != nil {
				want = nil
				for _, name := range types {
					want = append(want, about+" "+name)
				}
			}
			for _, w := range want {
				require.NotEqual(t, seen[w], notProduced[w] != "", "%s: produced or excepted, one of the two", w)
			}
		}
	}
}

// TestOpenAPI_Routes: the document tells of the routes that there are.
func TestOpenAPI_Routes(t *testing.T) {
	t.Parallel()
	source, err := parser.ParseFile(token.NewFileSet(), "api.go", nil, 0)
	require.NoError(t, err)
	registered := 0
	ast.Inspect(source, func(n ast.Node) bool {
		if call, ok := n.(*ast.CallExpr); ok {
			if f, ok := call.Fun.(*ast.SelectorExpr); ok && f.Sel.Name == "route" {
				registered += len(call.Args[1].(*ast.CompositeLit).Elts)
			}
		}
		return true
	})
	api, err := NewAPI(Options{Log: discard})
	require.NoError(t, err)
	patterns := map[string]bool{}
	for _, op := range newDocument(t).operations() {
		path := strings.NewReplacer("{id}", "r-1", "{account}", "main").Replace(op.path)
		r, err := http.NewRequestWithContext(t.Context(), op.method, path, nil)
		require.NoError(t, err)
		_, pattern := api.mux.Handler(r)
		require.True(t, strings.HasPrefix(pattern, op.method+" "), "%s isn't a route", op.id)
		patterns[pattern] = true
	}
	require.Len(t, patterns, registered, "a route isn't in the document")
}

// TestOpenAPI_Problems: the document tells of the problems that there are.
func TestOpenAPI_Problems(t *testing.T) {
	t.Parallel()
	d := newDocument(t)
	var declared, told, enum []string
	for _, p := range problems {
		declared = append(declared, fmt.Sprint(p.name(), " ", p.Status))
		enum = append(enum, p.Type)
	}
	words, _ := d.at("/components/schemas/ProblemType/description")
	for _, m := range regexp.MustCompile("(?m)^\\| `([a-z-]+)` \\| (\\d+) \\| .+ \\|$").FindAllStringSubmatch(words.(string), -1) {
		told = append(told, m[1]+" "+m[2])
	}
	require.ElementsMatch(t, declared, told)
	listed, _ := d.at("/components/schemas/ProblemType/enum")
	require.ElementsMatch(t, enum, listed)
}

// unlike are submissions that are refused although the schema allows them,
// because it can't say so: by why, a part of the body each.
var unlike = map[string][]string{
	"the same number as an integer": {`"value":1250.0`, `"value":1e3`},
	"repeated members":              {`"value":1,"value"`, `"refund_id":"r-1","refund_id"`, `\u0072efund_id`},
	"two fields compared":           {`"payment_amount":{"value":2000,"currency":"J`, `"payment_amount":{"value":1249`},
}

// TestOpenAPI_Submissions: the schema allows what DecodeRefund does.
func TestOpenAPI_Submissions(t *testing.T) {
	t.Parallel()
	s := newDocument(t).schema("/components/schemas/Submission")
	for _, good := range []string{
		body(nil), body(map[string]string{"payment_amount": "null"}), body(map[string]string{"payment_amount": `{"value":2000,"currency":"TWD"}`}),
		body(map[string]string{"reason": `"` + strings.Repeat("退", refund.MaxReasonLen) + `"`}),
		body(map[string]string{"requested_by": `"` + strings.Repeat("退", refund.MaxActorLen) + `"`}),
		body(map[string]string{"refund_id": `"` + strings.Repeat("r", refund.MaxReferenceLen) + `"`}),
		body(map[string]string{"amount": fmt.Sprintf(`{"value":%d,"currency":"JPY"}`, int64(refund.MaxAmount))}),
	} {
		_, err := DecodeRefund([]byte(good))
		require.NoError(t, err)
		require.NoError(t, accepts(s, []byte(good)), good)
	}
	bad := append(slices.Collect(maps.Keys(badFields)), body(map[string]string{"requested_by": `"` + strings.Repeat("x", refund.MaxActorLen+1) + `"`}))
	for content := range malformed {
		if content != "{\"a\":\"\xff\"}" { // the member is unknown too
			bad = append(bad, content)
		}
	}
	for _, content := range bad {
		_, err := DecodeRefund([]byte(content))
		require.Error(t, err, content)
		excepted := false
		for _, parts := range unlike {
			for _, part := range parts {
				excepted = excepted || strings.Contains(content, part)
			}
		}
		require.Equal(t, excepted, accepts(s, []byte(content)) == nil, content)
	}
}

// TestOpenAPI_Actions: the schemas of actions refuse what is refused.
func TestOpenAPI_Actions(t *testing.T) {
	t.Parallel()
	d := newDocument(t)
	for _, bad := range badActions {
		name := strings.ToUpper(string(bad.action[:1])) + string(bad.action[1:]) + "Action"
		excepted := strings.Contains(bad.body, `"by":"m","by"`) || strings.Contains(bad.body, "1.0") // no way to say so
		require.Equal(t, excepted, accepts(d.schema("/components/schemas/"+name), []byte(bad.body)) == nil, bad.body)
	}
}

// TestOpenAPI_Values: enums and limits are those of the code.
func TestOpenAPI_Values(t *testing.T) {
	t.Parallel()
	d := newDocument(t)
	constants := map[string][]any{}
	for _, file := range []string{"action.go", "call.go", "notice.go", "status.go"} {
		source, err := parser.ParseFile(token.NewFileSet(), "../refund/"+file, nil, 0)
		require.NoError(t, err)
		ast.Inspect(source, func(n ast.Node) bool {
			if c, ok := n.(*ast.ValueSpec); ok && len(c.Values) == 1 {
				if of, ok := c.Type.(*ast.Ident); ok {
					v, err := strconv.Unquote(c.Values[0].(*ast.BasicLit).Value)
					require.NoError(t, err)
					constants[of.Name] = append(constants[of.Name], v)
				}
			}
			return true
		})
	}
	for _, name := range []string{"Status", "ReviewReason", "Action", "CallKind", "Origin", "Outcome", "Budget", "Source", "NoticeProblem"} {
		enum, _ := d.at("/components/schemas/" + name + "/enum")
		require.ElementsMatch(t, constants[name], enum, name)
	}
	for pointer, want := range map[string]int64{
		"/components/schemas/Reason/maxLength":                                   refund.MaxReasonLen,
		"/components/schemas/Actor/maxLength":                                    refund.MaxActorLen,
		"/components/schemas/Evidence/maxLength":                                 refund.MaxEvidenceLen,
		"/components/schemas/Money/properties/value/maximum":                     refund.MaxAmount,
		"/components/schemas/CasePage/properties/cases/maxItems":                 ledger.MaxPageSize,
		"/paths/~1v1~1refunds/get/parameters/4/schema/maximum":                   ledger.MaxPageSize,
		"/paths/~1v1~1refunds/get/parameters/4/schema/default":                   ledger.DefaultPageSize,
		"/paths/~1v1~1refunds/get/parameters/1/schema/maxLength":                 refund.MaxActorLen,
		"/components/schemas/Problem/properties/errors/maxItems":                 maxFieldErrors,
		"/components/schemas/Call/properties/result/properties/detail/maxLength": refund.MaxDetailLen,
	} {
		v, _ := d.at(pointer)
		require.Equal(t, fmt.Sprint(want), fmt.Sprint(v), pointer)
	}
	require.Contains(t, d.root["info"].(map[string]any)["description"], strconv.Itoa(maxBody))
	scopes, _ := d.at("/components/securitySchemes/bearer/description")
	for _, scope := range config.Scopes {
		require.Contains(t, scopes, "`"+scope+"`: ")
	}
}

// TestOpenAPI_Document: every reference leads somewhere and every parameter of
// a path is declared.
func TestOpenAPI_Document(t *testing.T) {
	t.Parallel()
	d := newDocument(t)
	asJSON, err := yaml.YAMLToJSON(openAPIDocument)
	require.NoError(t, err)
	meta, err := jsonschema.NewCompiler().Compile("testdata/openapi-3.1-schema.json") // the OpenAPI Initiative's own
	require.NoError(t, err)
	require.NoError(t, accepts(meta, asJSON))
	for _, ref := range regexp.MustCompile(`\$ref: '#(/[^']+)'`).FindAllSubmatch(openAPIDocument, -1) {
		d.at(string(ref[1]))
	}
	for name := range d.root["components"].(map[string]any)["schemas"].(map[string]any) {
		d.schema("/components/schemas/" + name)
	}
	for path, item := range d.root["paths"].(map[string]any) {
		var declared []string
		list, _ := item.(map[string]any)["parameters"].([]any)
		for n := range list {
			p, _ := d.at("/paths/" + strings.ReplaceAll(path, "/", "~1") + "/parameters/" + strconv.Itoa(n))
			if p := p.(map[string]any); p["in"] == "path" {
				declared = append(declared, p["name"].(string))
			}
		}
		var used []string
		for _, m := range regexp.MustCompile(`\{(\w+)\}`).FindAllStringSubmatch(path, -1) {
			used = append(used, m[1])
		}
		require.ElementsMatch(t, used, declared, path)
	}
}
