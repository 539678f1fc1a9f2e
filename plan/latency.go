package plan

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"time"
)

// z99 is how many standard deviations above its median a normal variable's
// 99th percentile lies.
const z99 = 2.3263478740408408

// Latency is a log-normal distribution of how long a provider takes to answer,
// given by two of its percentiles as `refundgate egress status` measures them.
// Equal ones are a constant.
type Latency struct {
	P50 time.Duration
	P99 time.Duration
}

// Validate says whether there is such a distribution.
func (l Latency) Validate() error {
	switch {
	case l.P50 <= 0:
		return errors.New("the median must be more than zero")
	case l.P99 < l.P50:
		return fmt.Errorf("the 99th percentile (%s) must not be less than the median (%s)", l.P99, l.P50)
	}
	return nil
}

// sigma is the standard deviation of the latency's logarithm.
func (l Latency) sigma() float64 { return math.Log(float64(l.P99)/float64(l.P50)) / z99 }

// Draw returns one latency; never more than a day.
func (l Latency) Draw(r *rand.Rand) time.Duration {
	x := float64(l.P50) * math.Exp(l.sigma()*r.NormFloat64())
	return time.Duration(math.Min(x, float64(24*time.Hour)))
}

// Hold returns how long a call holds its place in flight on average, when it is
// given up after the time-out and the share lost (0 to 1) of the answers never
// comes at all.
func (l Latency) Hold(timeout time.Duration, lost float64) time.Duration {
	mean := l.meanUpTo(float64(timeout))
	return time.Duration(math.Round(mean + lost*(float64(timeout)-mean)))
}

// meanUpTo is the mean of the lesser of the latency and a limit.
func (l Latency) meanUpTo(limit float64) float64 {
	median, s := float64(l.P50), l.sigma()
	if s == 0 {
		return math.Min(median, limit)
	}
	z := math.Log(limit/median) / s
	return median*math.Exp(s*s/2)*phi(z-s) + limit*(1-phi(z))
}

// phi is the distribution function of the standard normal distribution.
func phi(z float64) float64 { return math.Erfc(-z/math.Sqrt2) / 2 }
