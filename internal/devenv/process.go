package devenv

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"
)

// process is one run of a child program, in a process group of its own: a
// Ctrl-C in the terminal reaches only us, and we stop the child in order.
type process struct {
	cmd  *exec.Cmd
	tail *tail
	done chan struct{} // closed when the child has ended
	err  error         // how it ended; valid once done is closed
}

// startProcess starts the command and copies its output to log (which may be
// nil). On Linux the kernel kills the child when this process dies.
func startProcess(cmd *exec.Cmd, log io.Writer) (*process, error) {
	if log == nil {
		log = io.Discard
	}
	p := &process{cmd: cmd, tail: &tail{next: log}, done: make(chan struct{})}
	cmd.Stdout, cmd.Stderr = p.tail, p.tail
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	dieWithParent(cmd.SysProcAttr)
	// A grandchild that holds the output pipe open must not hold up Wait.
	cmd.WaitDelay = time.Second

	started := make(chan error)
	go func() {
		// The kernel's parent-death signal fires when the thread that forked
		// the child ends, so that thread is kept for as long as the child lives.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			p.err = cmd.Wait()
			close(p.done)
		}
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("starting %s: %w", cmd.Path, err)
	}
	return p, nil
}

// wait blocks until the child has ended and returns how. When the context
// ends first, the child is killed.
func (p *process) wait(ctx context.Context) error {
	select {
	case <-p.done:
		return p.err
	case <-ctx.Done():
		return errors.Join(ctx.Err(), p.kill())
	}
}

// waitReady calls ready until it succeeds, the child ends or the context ends.
// Unless it returns nil, the child is gone.
func (p *process) waitReady(ctx context.Context, ready func(context.Context) error) error {
	var err error
	for wait := time.NewTicker(20 * time.Millisecond); ; {
		if err = ready(ctx); err == nil {
			return nil
		}
		select {
		case <-p.done:
			return fmt.Errorf("it ended before it was ready (%w); its last words: %s", p.err, p.tail)
		case <-ctx.Done():
			killErr := p.kill()
			return errors.Join(fmt.Errorf("it did not become ready: %w (last try: %w)", ctx.Err(), err), killErr)
		case <-wait.C:
		}
	}
}

// stop asks the child to end and kills it if it has not after the grace time.
func (p *process) stop(grace time.Duration) error {
	if err := p.signal(syscall.SIGTERM); err != nil {
		return err
	}
	select {
	case <-p.done:
		return nil
	case <-time.After(grace):
		if err := p.kill(); err != nil {
			return err
		}
		return fmt.Errorf("it did not stop within %s and was killed", grace)
	}
}

// kill ends the child and its group at once and waits until it is gone.
func (p *process) kill() error {
	if err := p.signal(syscall.SIGKILL); err != nil {
		return err
	}
	<-p.done
	return nil
}

// signal sends the signal to the child's group; a child that has ended is no
// error.
func (p *process) signal(sig syscall.Signal) error {
	select {
	case <-p.done:
		return nil
	default:
	}
	if err := syscall.Kill(-p.cmd.Process.Pid, sig); err != nil && !errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("sending %s to process %d: %w", sig, p.cmd.Process.Pid, err)
	}
	return nil
}

// maxTail is how much of a child's output is kept for error messages, in bytes.
const maxTail = 2000

// tail passes output on and remembers the end of it.
type tail struct {
	next io.Writer

	mu   sync.Mutex
	last []byte
}

func (t *tail) Write(b []byte) (int, error) {
	t.mu.Lock()
	t.last = append(t.last, b...)
	if over := len(t.last) - maxTail; over > 0 {
		t.last = append(t.last[:0], t.last[over:]...)
	}
	t.mu.Unlock()
	return t.next.Write(b)
}

// String returns the remembered output, or says that there was none.
func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	if text := strings.TrimSpace(string(t.last)); text != "" {
		return text
	}
	return "(no output)"
}
