package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"

	"github.com/google/uuid"
)

// restSessions are the live sessions of the REST API.
type restSessions struct {
	mu     sync.Mutex
	tokens map[string]bool
}

// serveREST serves the part of the REST API that compute policies need:
// sessions, the policies, and the objects with a tag.
func (v *VCenter) serveREST(mux *http.ServeMux, user, password string) {
	if v.spec.Policies == nil {
		return
	}
	sessions := &restSessions{tokens: map[string]bool{}}
	mux.HandleFunc("POST /api/session", func(w http.ResponseWriter, r *http.Request) {
		u, p, ok := r.BasicAuth()
		if !ok || u != user || p != password {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusCreated)
		answerREST(w, sessions.begin())
	})
	mux.HandleFunc("DELETE /api/session", sessions.checked(func(w http.ResponseWriter, r *http.Request) {
		sessions.end(r.Header.Get(restToken))
		w.WriteHeader(http.StatusNoContent)
	}))
	mux.HandleFunc("GET /api/vcenter/compute/policies", sessions.checked(func(w http.ResponseWriter, _ *http.Request) {
		list := []map[string]string{}
		for i, p := range v.spec.Policies {
			list = append(list, map[string]string{
				"policy": fmt.Sprintf("policy-%d", i), "name": p.Name, "description": "", "capability": p.Capability,
			})
		}
		answerREST(w, list)
	}))
	mux.HandleFunc("GET /api/vcenter/compute/policies/{policy}", sessions.checked(func(w http.ResponseWriter, r *http.Request) {
		i, p := v.policy(r.PathValue("policy"), "policy-%d")
		if p == nil {
			w.WriteHeader(http.StatusNotFound)
			return
		}
		answerREST(w, map[string]string{
			"name": p.Name, "description": "", "capability": p.Capability, "vm_tag": fmt.Sprintf(tagID, i),
		})
	}))
	mux.HandleFunc("POST /api/cis/tagging/tag-association/{tag}", sessions.checked(func(w http.ResponseWriter, r *http.Request) {
		_, p := v.policy(r.PathValue("tag"), tagID)
		if p == nil || r.URL.Query().Get("action") != "list-attached-objects" {
			w.WriteHeader(http.StatusNotFound)
			return
		}
		v.mu.Lock()
		defer v.mu.Unlock()
		list := []map[string]string{}
		for ref, g := range v.guests {
			if slices.Contains(p.VMs, g.Name) {
				list = append(list, map[string]string{"id": ref.Value, "type": ref.Type})
			}
		}
		answerREST(w, list)
	}))
}

const (
	restToken = "vmware-api-session-id"
	tagID     = "urn:vmomi:InventoryServiceTag:%d:GLOBAL"
)

// policy finds the policy whose number makes this id.
func (v *VCenter) policy(id, format string) (int, *PolicySpec) {
	for i := range v.spec.Policies {
		if fmt.Sprintf(format, i) == id {
			return i, &v.spec.Policies[i]
		}
	}
	return 0, nil
}

// shutsDown is true for a VM with the tag of a policy that shuts VMs down.
func (v *VCenter) shutsDown(g *guest) bool {
	return slices.ContainsFunc(v.spec.Policies, func(p PolicySpec) bool {
		return strings.HasSuffix(p.Capability, "best_effort_restart") && slices.Contains(p.VMs, g.Name)
	})
}

func (s *restSessions) begin() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	token := uuid.NewString()
	s.tokens[token] = true
	return token
}

func (s *restSessions) end(token string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.tokens, token)
}

func (s *restSessions) checked(next http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		live := s.tokens[r.Header.Get(restToken)]
		s.mu.Unlock()
		if !live {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		next(w, r)
	}
}

func answerREST(w http.ResponseWriter, body any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(body)
}
