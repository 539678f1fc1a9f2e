package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os/exec"
	"strconv"
	"strings"
	"time"

	// The Go project's reader of `go test -bench` output.
	"golang.org/x/perf/benchfmt"
)

// moduleRoot is where the product's module lies, seen from this one, in which
// `go run` and `go test` are started.
const moduleRoot = ".."

// pass is the cost of one call's way through the waiting room, or through the
// whole gate.
type pass struct {
	Benchmark string // its name in package limiter
	Waiting   int    // calls that wait meanwhile
	Time      time.Duration
	Bytes     float64 // allocated
	Allocs    float64 // how often
}

// passes runs the benchmarks of package limiter, whose insides they need, each
// for benchtime as `go test -benchtime` understands it.
func passes(ctx context.Context, benchtime string, progress io.Writer) ([]pass, error) {
	_, _ = fmt.Fprintln(progress, "the cost of one pass")
	cmd := exec.CommandContext(ctx, "go", "test", "-run", "^$", "-bench", "^Benchmark(Pass|Do)$",
		"-benchmem", "-benchtime", benchtime, "./limiter")
	cmd.Dir = moduleRoot
	out, err := cmd.CombinedOutput()
	if err != nil {
		return nil, fmt.Errorf("running the benchmarks of package limiter: %w\n%s", err, out)
	}
	return parsePasses(out)
}

func parsePasses(output []byte) ([]pass, error) {
	var all []pass
	reader := benchfmt.NewReader(bytes.NewReader(output), "go test")
	for reader.Scan() {
		result, ok := reader.Result().(*benchfmt.Result)
		if !ok {
			continue // what go test says besides
		}
		p := pass{Benchmark: string(result.Name.Base())}
		_, parts := result.Name.Parts()
		for _, part := range parts {
			if n, ok := strings.CutPrefix(string(part), "/waiting="); ok {
				var err error
				if p.Waiting, err = strconv.Atoi(n); err != nil {
					return nil, fmt.Errorf("reading benchmark %s: %w", result.Name, err)
				}
			}
		}
		seconds, ok1 := result.Value("sec/op")
		bytes, ok2 := result.Value("B/op")
		allocs, ok3 := result.Value("allocs/op")
		if !ok1 || !ok2 || !ok3 {
			return nil, fmt.Errorf("reading benchmark %s: a figure is missing", result.Name)
		}
		p.Time, p.Bytes, p.Allocs = time.Duration(seconds*float64(time.Second)), bytes, allocs
		all = append(all, p)
	}
	return all, reader.Err()
}
