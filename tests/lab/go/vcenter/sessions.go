package main

import (
	"context"
	"sync"
	"time"

	"github.com/vmware/govmomi/simulator"
	"github.com/vmware/govmomi/vim25/methods"
	"github.com/vmware/govmomi/vim25/soap"
	"github.com/vmware/govmomi/vim25/types"
)

// Sessions ends sessions as a vCenter does: with all their objects. The
// simulator's TerminateSession removes only the cookie and leaves views,
// collectors and waiting calls.
type Sessions struct {
	v  *VCenter
	mu sync.Mutex
	// registries holds the objects of each session.
	registries map[string]*simulator.Registry
	// refusedUntil is when logins with the right password are accepted again.
	refusedUntil time.Time
}

func newSessions(v *VCenter) *Sessions {
	return &Sessions{v: v, registries: map[string]*simulator.Registry{}}
}

func (s *Sessions) seen(ctx *simulator.Context) {
	if ctx.Session == nil || ctx.Session.Registry == nil {
		return
	}
	s.mu.Lock()
	s.registries[ctx.Session.Key] = ctx.Session.Registry
	s.mu.Unlock()
}

func (s *Sessions) registry(key string) *simulator.Registry {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.registries[key]
}

// observer is a session that is not in the session list.
func (s *Sessions) observer() *simulator.Context {
	session := &simulator.Session{UserSession: types.UserSession{Key: "ctl"}, Registry: simulator.NewRegistry(), Map: s.v.reg}
	return &simulator.Context{Context: context.Background(), Session: session, Map: s.v.reg}
}

func (s *Sessions) list() []types.UserSession {
	ctx := s.observer()
	return ctx.Session.Get(s.v.reg.SessionManager().Self).(*simulator.SessionManager).SessionList
}

// kill ends all sessions. Their waiting calls end with RequestCanceled, unless
// silent is set: then they hang until their time has passed.
func (s *Sessions) kill(silent bool, why string) int {
	ctx := s.observer()
	list := s.list()
	for _, session := range list {
		s.v.reg.SessionManager().TerminateSession(ctx, &types.TerminateSession{SessionId: []string{session.Key}})
		s.v.journal.add(Entry{Kind: "session", User: session.UserName, Session: session.Key, Detail: why})
	}
	s.mu.Lock()
	dead := s.registries
	s.registries = map[string]*simulator.Registry{}
	s.mu.Unlock()
	for key, r := range dead {
		s.sweep(key, r, silent)
	}
	s.v.mu.Lock()
	s.v.bump()
	s.v.mu.Unlock()
	return len(list)
}

// sweep removes the objects of an ended session, so that they get no more
// updates.
func (s *Sessions) sweep(key string, r *simulator.Registry, silent bool) {
	ctx := &simulator.Context{
		Context: context.Background(), Map: s.v.reg,
		Session: &simulator.Session{UserSession: types.UserSession{Key: key}, Registry: r, Map: s.v.reg},
	}
	for _, o := range r.AllReference("") {
		switch x := o.(type) {
		case *simulator.TaskHistoryCollector:
			x.DestroyCollector(ctx, &types.DestroyCollector{This: x.Self})
		case *TaskHistoryCollector:
			s.v.collectors.close(x)
		case *simulator.PropertyCollector:
			if s.v.collectors != nil {
				s.v.collectors.drop(x, silent)
			}
			if !silent {
				x.CancelWaitForUpdates(&types.CancelWaitForUpdates{This: x.Self})
			}
		}
		if handler, ok := o.(simulator.RegisterObject); ok {
			s.v.reg.RemoveHandler(handler)
		}
	}
}

// cancelWait ends a waiting call whose client has closed the connection; in the
// simulator it would continue to wait and take the updates of the next call.
func (s *Sessions) cancelWait(key string, ref types.ManagedObjectReference) {
	if r := s.registry(key); r != nil {
		if pc, ok := r.Get(ref).(*simulator.PropertyCollector); ok {
			s.v.cancelUpdates(pc)
		}
	}
}

// refuse makes each login InvalidLogin for a while, as a vCenter may do whose
// SSO starts later than the service itself.
func (s *Sessions) refuse(period time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refusedUntil = time.Now().Add(period)
}

func (s *Sessions) refuses() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return time.Now().Before(s.refusedUntil)
}

// Login implements the SOAP method.
func (v *VCenter) Login(ctx *simulator.Context, req *types.Login) soap.HasFault {
	if v.sessions.refuses() {
		v.journal.add(Entry{Kind: "session", User: req.UserName, Detail: "login refused"})
		return &methods.LoginBody{Fault_: soapFault(&types.InvalidLogin{})}
	}
	res := v.reg.SessionManager().Login(ctx, req)
	v.mu.Lock()
	defer v.mu.Unlock()
	defer v.bump()
	if res.Fault() != nil {
		v.journal.add(Entry{Kind: "session", User: req.UserName, Detail: "login refused"})
		return &methods.LoginBody{Fault_: soapFault(&types.InvalidLogin{})}
	}
	v.sessions.seen(ctx)
	v.journal.add(Entry{Kind: "session", User: req.UserName, Session: ctx.Session.Key, Agent: ctx.Session.UserAgent, Detail: "login"})
	return res
}

// Logout implements the SOAP method.
func (v *VCenter) Logout(ctx *simulator.Context, req *types.Logout) soap.HasFault {
	key := ctx.Session.Key
	v.sessions.sweep(key, ctx.Session.Registry, false)
	res := v.reg.SessionManager().Logout(ctx, req)
	v.sessions.mu.Lock()
	delete(v.sessions.registries, key)
	v.sessions.mu.Unlock()
	v.mu.Lock()
	defer v.mu.Unlock()
	v.journal.add(Entry{Kind: "session", User: ctx.Session.UserName, Session: key, Detail: "logout"})
	v.bump()
	return res
}
