package devenv

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"time"
)

// startLimit bounds a start, the creation of the data included.
const startLimit = 60 * time.Second

// server is a child process that can be stopped and started again on the same
// data and the same address. Its methods may be called by many goroutines.
type server struct {
	name     string // for errors, such as "MariaDB in /data"
	log      io.Writer
	lockPath string        // the lock file of its data; "" if it keeps none
	grace    time.Duration // what Stop allows before it kills

	// prepare is called with the lock held and returns the command to run.
	prepare func(context.Context) (*exec.Cmd, error)
	// ready tells whether the running server serves.
	ready func(context.Context) error
	// cleanup, if set, is called after each run, with the lock still held.
	cleanup func() error

	mu   sync.Mutex
	proc *process // nil while stopped
	lock *os.File // nil while stopped
}

// Start starts the server again after Stop or Kill, on the same data and the
// same address, and returns when it serves. The context bounds the start only.
// A server that runs is left alone.
func (s *server) Start(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.proc != nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	if s.lockPath != "" {
		lock, err := lockFile(s.lockPath)
		if err != nil {
			return fmt.Errorf("starting %s: %w", s.name, err)
		}
		s.lock = lock
	}
	proc, err := s.start(ctx)
	if err != nil {
		return errors.Join(fmt.Errorf("starting %s: %w", s.name, err), s.release())
	}
	s.proc = proc
	return nil
}

func (s *server) start(ctx context.Context) (*process, error) {
	cmd, err := s.prepare(ctx)
	if err != nil {
		return nil, err
	}
	if s.lock != nil {
		// The server shares the lock: its data is free only once it is gone.
		cmd.ExtraFiles = []*os.File{s.lock}
	}
	proc, err := startProcess(cmd, s.log)
	if err != nil {
		return nil, err
	}
	return proc, proc.waitReady(ctx, s.ready)
}

// Stop shuts the server down in order, or kills it when that takes too long,
// which is reported. Stopping a stopped server does nothing.
func (s *server) Stop() error {
	return s.end(func(p *process) error { return p.stop(s.grace) })
}

// Kill ends the server the hard way (SIGKILL). What it committed survives.
func (s *server) Kill() error { return s.end((*process).kill) }

func (s *server) end(how func(*process) error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.proc == nil {
		return nil
	}
	err := errors.Join(how(s.proc), s.release())
	s.proc = nil
	if err != nil {
		return fmt.Errorf("stopping %s: %w", s.name, err)
	}
	return nil
}

// release gives back what a run held.
func (s *server) release() error {
	var errs []error
	if s.cleanup != nil {
		errs = append(errs, s.cleanup())
	}
	if s.lock != nil {
		errs = append(errs, s.lock.Close())
		s.lock = nil
	}
	return errors.Join(errs...)
}

// Died returns nil unless the server has ended without being asked to: neither
// by Stop nor by Kill. The error says how and has the end of its output.
func (s *server) Died() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.proc == nil {
		return nil
	}
	select {
	case <-s.proc.done:
		return fmt.Errorf("%s ended by itself (%s); its last words:\n%s", s.name, s.proc.cmd.ProcessState, s.proc.tail)
	default:
		return nil
	}
}

// Pid returns the process id of the server that runs now, or 0 without one.
func (s *server) Pid() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.proc == nil {
		return 0
	}
	return s.proc.cmd.Process.Pid
}

// Done returns a channel that is closed when the server that runs now ends,
// whoever ends it. Without one it is closed already.
func (s *server) Done() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.proc == nil {
		ended := make(chan struct{})
		close(ended)
		return ended
	}
	return s.proc.done
}
