package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// stopLimit is how long a program may take to end before it is killed.
const stopLimit = 20 * time.Second

// build builds a package, with the working directory dir, as `make build` does
// it, and puts the program at output.
func build(ctx context.Context, dir, pkg, output string) error {
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-o", output, pkg)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("building %s: %w\n%s", pkg, err, out)
	}
	return nil
}

// program is a server that runs as a process of its own.
type program struct {
	url    string
	cmd    *exec.Cmd
	cancel context.CancelFunc
	log    *os.File
}

// startProgram starts the program and returns once it has written where it
// serves, as "name: http://host:port". What it logs goes to a file beside it,
// as under a supervisor; its environment is empty, whatever the user's is set up
// for.
func startProgram(ctx context.Context, path string, args ...string) (*program, error) {
	name := filepath.Base(path)
	log, err := os.Create(path + ".log")
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	p := &program{cmd: exec.CommandContext(ctx, path, args...), cancel: cancel, log: log}
	p.cmd.Env = []string{}
	p.cmd.Stderr = log
	p.cmd.Cancel = func() error { return p.cmd.Process.Signal(syscall.SIGTERM) }
	p.cmd.WaitDelay = stopLimit
	out, err := p.cmd.StdoutPipe()
	if err == nil {
		err = p.cmd.Start()
	}
	if err != nil {
		cancel()
		return nil, errors.Join(fmt.Errorf("starting %s: %w", name, err), log.Close())
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	_, url, found := strings.Cut(strings.TrimSpace(line), ": ")
	if err != nil || !found {
		words, _ := os.ReadFile(log.Name())
		return nil, errors.Join(fmt.Errorf("starting %s: it did not say where it serves: %q; its log: %s", name, line, words), p.stop())
	}
	p.url = url
	return p, nil
}

// stop has the program end in order, and fails if it did not.
func (p *program) stop() error {
	p.cancel()
	err := p.cmd.Wait()
	if errors.Is(err, context.Canceled) {
		err = nil // it was asked to end, and did
	}
	if err != nil {
		err = fmt.Errorf("stopping %s: %w", filepath.Base(p.cmd.Path), err)
	}
	return errors.Join(err, p.log.Close())
}
