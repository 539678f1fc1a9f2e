package devenv

import (
	"fmt"
	"io"
	"os/exec"
	"syscall"
	"time"
)

// Child is a program that runs as a child of this process and never outlives
// it. Signals reach its whole process group.
type Child struct{ p *process }

// StartChild starts the command and copies what it prints, stdout and stderr
// in one, to out.
func StartChild(cmd *exec.Cmd, out io.Writer) (*Child, error) {
	p, err := startProcess(cmd, out)
	if err != nil {
		return nil, err
	}
	return &Child{p}, nil
}

// PID is the process's id.
func (c *Child) PID() int { return c.p.cmd.Process.Pid }

// Done is closed when the child has ended.
func (c *Child) Done() <-chan struct{} { return c.p.done }

// Err returns how the child ended, with the last of what it printed. It waits
// for the end.
func (c *Child) Err() error {
	<-c.p.done
	if c.p.err == nil {
		return nil
	}
	return fmt.Errorf("%w; its last words: %s", c.p.err, c.p.tail)
}

// Signal sends the signal to the child; one that has ended is no error.
func (c *Child) Signal(sig syscall.Signal) error { return c.p.signal(sig) }

// Stop asks the child to end and kills it, which is an error, if it has not
// after the grace time.
func (c *Child) Stop(grace time.Duration) error { return c.p.stop(grace) }

// Kill ends the child at once and waits until it is gone.
func (c *Child) Kill() error { return c.p.kill() }
