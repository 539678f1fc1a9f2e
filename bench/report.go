package main

import (
	_ "embed"
	"fmt"
	"io"
	"os"
	"runtime"
	"runtime/debug"
	"strings"
	"text/template"
	"time"
)

// report is the page's content.
type report struct {
	Machine        machine
	Begin, End     time.Time
	Loads          []string // load averages before the first comparison and after each
	TemporalServer string   // its version
	Candidates     []candidate
	Comparisons    []comparison
	TLS            comparison
	Passes         []pass
	Intake         *intakeReport // nil if it was left out
}

//go:embed performance.md.tmpl
var page string

var pageTemplate = template.Must(template.New("performance.md").Funcs(template.FuncMap{
	"percent": func(share float64) string { return fmt.Sprintf("%.2f %%", 100*share) },
	"ratio":   func(a, b any) string { return fmt.Sprintf("%.3f", number(a)/number(b)) },
	"ms":      func(d time.Duration) string { return fmt.Sprintf("%.2f ms", d.Seconds()*1000) },
	"us":      func(d time.Duration) string { return fmt.Sprintf("%.2f µs", d.Seconds()*1e6) },
	"tenths":  func(v float64) string { return fmt.Sprintf("%.1f", v) },
	"whole":   func(v float64) string { return fmt.Sprintf("%.0f", v) },
	"times":   func(a, b any) string { return fmt.Sprintf("%.2f", number(a)/number(b)) },
	"MiB":     func(bytes int64) string { return fmt.Sprintf("%d MiB", bytes>>20) },
	"oneOf":   oneOf,
	"rate":    func(d time.Duration) string { return fmt.Sprintf("%.3g", 1/d.Seconds()) },
	"version": moduleVersion,
}).Parse(page))

// oneOf lists durations in words.
func oneOf(all []time.Duration) string {
	words := make([]string, len(all))
	for i, d := range all {
		words[i] = fmt.Sprintf("%d ms", d.Milliseconds())
	}
	last := len(words) - 1
	if last == 0 {
		return words[0]
	}
	return strings.Join(words[:last], ", ") + " or " + words[last]
}

// number returns a figure without its unit.
func number(v any) float64 {
	if d, ok := v.(time.Duration); ok {
		return float64(d)
	}
	return v.(float64)
}

func (r *report) write(w io.Writer) error { return pageTemplate.Execute(w, r) }

// write writes the page's section about the intake.
func (r *intakeReport) write(w io.Writer) error { return pageTemplate.ExecuteTemplate(w, "intake", r) }

// moduleVersion returns the version of a module that is part of this program.
func moduleVersion(path string) (string, error) {
	info, ok := debug.ReadBuildInfo()
	if ok {
		for _, m := range info.Deps {
			if m.Path == path {
				return m.Version, nil
			}
		}
	}
	return "", fmt.Errorf("no version of %s in this program", path)
}

// machine is what the figures were taken on.
type machine struct {
	CPU    string // model
	Cores  int    // that the program may use
	Kernel string
	Go     string
}

// thisMachine asks Linux; elsewhere most of it stays unknown.
func thisMachine() machine {
	m := machine{CPU: "unknown", Cores: runtime.NumCPU(), Kernel: "unknown", Go: runtime.Version()}
	if info, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		for line := range strings.Lines(string(info)) {
			if key, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(key) == "model name" {
				m.CPU = strings.TrimSpace(value)
				break
			}
		}
	}
	if release, err := os.ReadFile("/proc/sys/kernel/osrelease"); err == nil {
		m.Kernel = runtime.GOOS + " " + strings.TrimSpace(string(release))
	}
	return m
}

// load returns the machine's load average of the last minute: how many
// processes wanted a core, these included.
func load() string {
	averages, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return "unknown"
	}
	now, _, _ := strings.Cut(string(averages), " ")
	return now
}
