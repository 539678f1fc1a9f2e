package main

import (
	"net"
	"sync"
	"syscall"
	"time"
)

// starts notes the instants at which calls start, and what the process has
// used of the CPU by then.
type starts struct {
	mu  sync.Mutex
	at  []time.Time
	cpu []time.Duration
}

func (s *starts) note() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cpu = append(s.cpu, cpuTime())
	s.at = append(s.at, time.Now())
}

// cpuTime returns the CPU time that this process has used, in user and system
// mode.
func cpuTime() time.Duration {
	var used syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &used); err != nil {
		panic("reading the CPU time: " + err.Error()) // can't fail with these arguments
	}
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}

// sendingConn notes its first Write, before the byte leaves.
type sendingConn struct {
	net.Conn
	start func()
}

func (c *sendingConn) Write(b []byte) (int, error) {
	c.start()
	return c.Conn.Write(b)
}

// arrivals notes the first Read of every connection that returns anything.
type arrivals struct {
	net.Listener
	starts *starts
}

func (l arrivals) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &arrivingConn{Conn: conn, start: sync.OnceFunc(l.starts.note)}, nil
}

type arrivingConn struct {
	net.Conn
	start func()
}

func (c *arrivingConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if n > 0 {
		c.start()
	}
	return n, err
}
