package report

import "fmt"

// Checking collects what breaks a promise.
type Checking struct {
	check  Check
	broken int
}

// maxProblems is how many problems of a check are named.
const maxProblems = 5

// NewCheck begins a check.
func NewCheck(name, promise string) *Checking {
	return &Checking{check: Check{Name: name, Promise: promise}}
}

// Require notes a problem unless the condition holds.
func (c *Checking) Require(holds bool, problem string, args ...any) {
	if holds {
		return
	}
	c.broken++
	if len(c.check.Problems) < maxProblems {
		c.check.Problems = append(c.check.Problems, fmt.Sprintf(problem, args...))
	}
}

// Judged returns the check with its verdict and the figure it was judged by.
func (c *Checking) Judged(measured string, args ...any) Check {
	c.check.Passed = c.broken == 0
	c.check.Measured = fmt.Sprintf(measured, args...)
	if more := c.broken - len(c.check.Problems); more > 0 {
		c.check.Problems = append(c.check.Problems, fmt.Sprintf("and %d more", more))
	}
	return c.check
}
