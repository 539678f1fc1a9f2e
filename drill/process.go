package drill

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"refundgate/drill/record"
	"refundgate/internal/devenv"
	"refundgate/limiter"
)

// process is a running refundgate.
type process struct {
	*devenv.Child
	name string // in the report, such as egress-1
	log  *record.Log
	file *os.File // keeps all that it prints
	// ended: it was ended on purpose. Only the scenario's goroutine uses it.
	ended bool

	mu      sync.Mutex
	partial []byte
	lines   []string      // of stdout
	more    chan struct{} // closed and replaced at each of them
}

// startGrace bounds how long a process may take to say that it is ready, and
// to end when it is asked to.
const startGrace = 30 * time.Second

// start runs the program with these arguments. Whatever it logs goes to the log,
// and all that it prints to a file in dir.
func start(name, binary, dir string, env []string, log *record.Log, args ...string) (*process, error) {
	file, err := os.OpenFile(filepath.Join(dir, name+".log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, fmt.Errorf("starting %s: %w", name, err)
	}
	p := &process{name: name, log: log, file: file, more: make(chan struct{})}
	cmd := exec.Command(binary, args...)
	cmd.Env = append(os.Environ(), env...)
	child, err := devenv.StartChild(cmd, p)
	if err != nil {
		_ = file.Close()
		return nil, fmt.Errorf("starting %s: %w", name, err)
	}
	p.Child = child
	return p, nil
}

// Write takes what the process prints: JSON is its log, the rest is for people.
func (p *process) Write(b []byte) (int, error) {
	read := monotonic()
	p.mu.Lock()
	defer p.mu.Unlock()
	_, _ = p.file.Write(b) // a full disk must not end the drill; the file is for reading afterwards
	p.partial = append(p.partial, b...)
	for {
		line, rest, found := bytes.Cut(p.partial, []byte{'\n'})
		if !found {
			return len(b), nil
		}
		if bytes.HasPrefix(line, []byte{'{'}) {
			p.log.Add(p.name, read, line)
		} else {
			p.lines = append(p.lines, string(line))
			close(p.more)
			p.more = make(chan struct{})
		}
		p.partial = rest
	}
}

// await waits for a line with the given beginning and returns what follows it.
func (p *process) await(ctx context.Context, prefix string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, startGrace)
	defer cancel()
	for {
		p.mu.Lock()
		lines, more := p.lines, p.more
		p.mu.Unlock()
		for _, line := range lines {
			if rest, ok := strings.CutPrefix(line, prefix); ok {
				return rest, nil
			}
		}
		select {
		case <-more:
		case <-p.Done():
			return "", fmt.Errorf("%s ended before it printed %q: %w", p.name, prefix, p.Err())
		case <-ctx.Done():
			return "", fmt.Errorf("waiting for %s to print %q: %w", p.name, prefix, context.Cause(ctx))
		}
	}
}

// printed returns the lines with that beginning.
func (p *process) printed(prefix string) []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	var found []string
	for _, line := range p.lines {
		if strings.HasPrefix(line, prefix) {
			found = append(found, line)
		}
	}
	return found
}

// pause stops the process with SIGSTOP and returns an instant from which on
// none of its threads runs, until goOn.
func (p *process) pause() (time.Duration, error) {
	if err := p.Signal(syscall.SIGSTOP); err != nil {
		return 0, err
	}
	if err := awaitStop(p.PID()); err != nil {
		return 0, fmt.Errorf("waiting for %s to stop: %w", p.name, err)
	}
	return monotonic(), nil
}

// goOn ends a pause.
func (p *process) goOn() error { return p.Signal(syscall.SIGCONT) }

// stop ends the process in order.
func (p *process) stop() error {
	p.ended = true
	err := p.Stop(startGrace)
	p.log.Ended(p.name, monotonic(), false)
	if err == nil {
		err = p.Err()
	}
	if err != nil {
		return fmt.Errorf("stopping %s: %w", p.name, err)
	}
	return nil
}

// kill ends the process as a crash does.
func (p *process) kill() error {
	p.ended = true
	err := p.Kill()
	p.log.Ended(p.name, monotonic(), true)
	if err != nil {
		return fmt.Errorf("killing %s: %w", p.name, err)
	}
	return nil
}

// monotonic reads the clock of the gate's stamps and of the stand-in's.
func monotonic() time.Duration { return limiter.MonotonicClock().Now() }
