package main

import (
	"maps"
	"strings"
	"sync"
)

// Traffic counts what each program asks of the SDK, by the first word of its
// User-Agent. Its mutex is a leaf.
type Traffic struct {
	mu     sync.Mutex
	agents map[string]Count
}

// Count is what one program has asked: calls begun, and bytes of SOAP in both
// directions of those that were answered.
type Count struct {
	Calls    int `json:"calls"`
	Received int `json:"received"`
	Sent     int `json:"sent"`
}

func newTraffic() *Traffic { return &Traffic{agents: map[string]Count{}} }

func (t *Traffic) add(userAgent string, c Count) {
	name, _, _ := strings.Cut(userAgent, "/")
	name, _, _ = strings.Cut(name, " ")
	t.mu.Lock()
	defer t.mu.Unlock()
	sum := t.agents[strings.ToLower(name)]
	sum.Calls += c.Calls
	sum.Received += c.Received
	sum.Sent += c.Sent
	t.agents[strings.ToLower(name)] = sum
}

func (t *Traffic) all() map[string]Count {
	t.mu.Lock()
	defer t.mu.Unlock()
	return maps.Clone(t.agents)
}
