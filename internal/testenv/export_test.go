package testenv

// SharedServer returns the process id of the only shared server, and what says
// that it has died.
func SharedServer() (pid int, died func() error) {
	shared.mu.Lock()
	defer shared.mu.Unlock()
	s := shared.servers[0]
	return s.(interface{ Pid() int }).Pid(), s.Died
}
