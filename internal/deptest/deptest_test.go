// Package deptest holds the rules about which package may depend on which.
package deptest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"path"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"refundgate/internal/testenv"
)

const module = "refundgate/"

// rules name packages and all that each may depend on within this module,
// directly or through others, tests left aside. Packages without a rule (the
// worker, the starter, the drill, the dashboard, the commands) wire the
// concrete parts and may depend on anything but what the last rules forbid.
var rules = []rule{
	{pkg: "refund", may: nothing, stdlibOnly: true},
	{pkg: "provider", may: only("refund"), stdlibOnly: true},
	{pkg: "provider/*", may: only("refund", "provider")},
	{pkg: "limiter", may: only("refund")},
	{pkg: "ledger", may: only("refund")},
	// A workflow decides; whatever does I/O is out of its reach.
	{pkg: "workflows", may: only("refund", "internal/telemetry")},
	// Activities know the parts' types and errors, and are handed the parts.
	{pkg: "activities", may: only("refund", "provider", "limiter", "ledger", "internal/telemetry")},
	{pkg: "plan", may: nothing, stdlibOnly: true},
	// The simulation decides and queues with the code of production.
	{pkg: "plan/simulation", may: only("refund", "plan", "workflows", "limiter", "internal/telemetry")},
	{pkg: "internal/config", may: only("refund")},
	{pkg: "internal/telemetry", may: only("refund")},
	{pkg: "internal/devenv", may: only("refund")},
	{pkg: "internal/testenv", may: only("refund", "internal/devenv")},
}

// testOnly is what no program may contain. (Temporal's SDK brings "testing" and
// testify into every program, so those can't be listed.)
var testOnly = []string{module + "internal/testenv", module + "provider/providertest", "pgregory.net/rapid"}

type rule struct {
	pkg        string   // path in the module; * stands for one element
	may        []string // paths in the module
	stdlibOnly bool     // nothing from other modules either
}

var nothing []string

func only(pkgs ...string) []string { return pkgs }

// pkg is a package as `go list` describes it.
type pkg struct {
	ImportPath string
	Name       string
	Deps       []string // everything it depends on, directly or not
}

func TestPackagesKeepTheRules(t *testing.T) {
	t.Parallel()
	for _, broken := range violations(listPackages(t)) {
		t.Error(broken)
	}
}

func violations(pkgs []pkg) []string {
	var broken []string
	for _, p := range pkgs {
		for _, dep := range p.Deps {
			if why := forbidden(p, dep); why != "" {
				broken = append(broken, fmt.Sprintf("%s depends on %s: %s", p.ImportPath, dep, why))
			}
		}
	}
	return broken
}

// forbidden says why p must not depend on dep, or "" if it may.
func forbidden(p pkg, dep string) string {
	if p.Name == "main" && slices.Contains(testOnly, dep) {
		return "only tests may"
	}
	within, inModule := strings.CutPrefix(dep, module)
	for _, r := range rules {
		if ok, _ := path.Match(module+r.pkg, p.ImportPath); !ok {
			continue
		}
		if inModule && !slices.Contains(r.may, within) {
			return fmt.Sprintf("of this module it may only depend on %q", r.may)
		}
		if !inModule && r.stdlibOnly && strings.Contains(strings.Split(dep, "/")[0], ".") {
			return "it may only depend on the standard library"
		}
	}
	return ""
}

// listPackages returns the packages of this module.
func listPackages(t *testing.T) []pkg {
	t.Helper()
	testenv.DependOnSources(t)
	// -e: a package that does not compile is for other tests to report.
	cmd := exec.Command("go", "list", "-e", "-json=ImportPath,Name,Deps", module+"...")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	require.NoError(t, err, stderr.String())

	var pkgs []pkg
	for dec := json.NewDecoder(bytes.NewReader(out)); ; {
		var p pkg
		err := dec.Decode(&p)
		if errors.Is(err, io.EOF) {
			break
		}
		require.NoError(t, err)
		pkgs = append(pkgs, p)
	}
	require.True(t, slices.ContainsFunc(pkgs, func(p pkg) bool { return p.ImportPath == module+"refund" }), "go list found nothing")
	return pkgs
}

func TestViolationsAreFound(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		pkg  pkg
		deps []string
		want int
	}{
		{pkg{ImportPath: "refundgate/refund"}, []string{"fmt", "encoding/json"}, 0},
		{pkg{ImportPath: "refundgate/refund"}, []string{"golang.org/x/sync/errgroup", "refundgate/ledger"}, 2},
		{pkg{ImportPath: "refundgate/limiter"}, []string{"refundgate/refund", "golang.org/x/sys/unix"}, 0},
		{pkg{ImportPath: "refundgate/limiter"}, []string{"refundgate/ledger", "refundgate/provider"}, 2},
		{pkg{ImportPath: "refundgate/provider/stripe"}, []string{"refundgate/provider", "github.com/stripe/stripe-go"}, 0},
		{pkg{ImportPath: "refundgate/provider/stripe"}, []string{"refundgate/limiter", "refundgate/provider/reference"}, 2},
		{pkg{ImportPath: "refundgate/workflows"}, []string{"refundgate/worker"}, 1},
		{pkg{ImportPath: "refundgate/worker", Name: "worker"}, []string{"refundgate/limiter", "refundgate/ledger"}, 0},
		{pkg{ImportPath: "refundgate/cmd/refundgate", Name: "main"}, []string{"refundgate/worker", "pgregory.net/rapid"}, 1},
	} {
		tt.pkg.Deps = tt.deps
		found := violations([]pkg{tt.pkg})
		require.Len(t, found, tt.want, "%s with %q: %q", tt.pkg.ImportPath, tt.deps, found)
	}
}
