package main

import (
	"strings"
	"sync"
	"time"
)

// Traffic counts the calls of each program to the SDK, by the first word of its
// User-Agent. Its mutex is a leaf lock.
type Traffic struct {
	mu     sync.Mutex
	agents map[string]*asked
}

// Count is the traffic of one program: calls that started, and bytes of SOAP in
// both directions of calls that ended.
type Count struct {
	Calls    int `json:"calls"`
	Received int `json:"received"`
	Sent     int `json:"sent"`
}

type asked struct {
	begun    []time.Time
	received int
	sent     int
}

func newTraffic() *Traffic { return &Traffic{agents: map[string]*asked{}} }

// begins counts a call that starts.
func (t *Traffic) begins(userAgent string, received int) {
	t.of(userAgent, func(a *asked) {
		a.begun = append(a.begun, time.Now())
		a.received += received
	})
}

// answered counts its response.
func (t *Traffic) answered(userAgent string, sent int) {
	t.of(userAgent, func(a *asked) { a.sent += sent })
}

func (t *Traffic) of(userAgent string, note func(*asked)) {
	name, _, _ := strings.Cut(userAgent, "/")
	name, _, _ = strings.Cut(name, " ")
	name = strings.ToLower(name)
	t.mu.Lock()
	defer t.mu.Unlock()
	a, ok := t.agents[name]
	if !ok {
		a = &asked{}
		t.agents[name] = a
	}
	note(a)
}

// all returns the calls that had started by then, and all bytes.
func (t *Traffic) all(then time.Time) map[string]Count {
	t.mu.Lock()
	defer t.mu.Unlock()
	counts := map[string]Count{}
	for name, a := range t.agents {
		calls := len(a.begun)
		for calls > 0 && a.begun[calls-1].After(then) {
			calls--
		}
		counts[name] = Count{Calls: calls, Received: a.received, Sent: a.sent}
	}
	return counts
}
