package main

import (
	"bytes"
	"encoding/xml"
	"errors"
	"path"
	"reflect"
	"strings"
	"sync"

	"github.com/vmware/govmomi/simulator"
	"github.com/vmware/govmomi/vim25/mo"
	vim "github.com/vmware/govmomi/vim25/types"
	vimxml "github.com/vmware/govmomi/vim25/xml"
)

// values keeps each property that one of our collectors has read, encoded,
// until the property changes. All collectors share it, so the cost of a read
// does not depend on how many collectors there are. Its mutex is a leaf lock.
type values struct {
	visibility *visibility
	stale      *staleRows
	mu         sync.Mutex
	objects    map[ref]*known
}

// known is what was read of one object.
type known struct {
	// generation grows with each change, so that a value that was read before
	// a change is not kept.
	generation int
	cells      map[string]cell
}

// cell is one property: a changeSet with its value, a changeSet without one if
// it is unset, or a missingSet if there is no such property.
type cell struct {
	xml   string
	state cellState
}

type cellState int

const (
	cellSet cellState = iota
	cellUnset
	cellMissing
)

func newValues(visibility *visibility, stale *staleRows) *values {
	return &values{visibility: visibility, stale: stale, objects: map[ref]*known{}}
}

// covers is true if a change of one path is a change of the other.
func covers(a, b string) bool {
	if len(a) > len(b) {
		a, b = b, a
	}
	return strings.HasPrefix(b, a) && (len(a) == len(b) || b[len(a)] == '.' || b[len(a)] == '[')
}

// changed removes the properties that a change of these paths affects; all of
// them if none is named.
func (s *values) changed(obj ref, names []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	k := s.objects[obj]
	if k == nil {
		return
	}
	k.generation++
	if names == nil {
		clear(k.cells)
	}
	for _, name := range names {
		for path := range k.cells {
			if covers(path, name) {
				delete(k.cells, path)
			}
		}
	}
}

// gone removes an object. A read in progress keeps nothing.
func (s *values) gone(obj ref) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if k := s.objects[obj]; k != nil {
		k.generation++
		delete(s.objects, obj)
	}
}

// read returns the properties at these paths, and false if the object is gone.
func (s *values) read(ctx *simulator.Context, obj ref, paths []string) ([]cell, bool) {
	s.mu.Lock()
	k := s.objects[obj]
	if k == nil {
		k = &known{cells: map[string]cell{}}
		s.objects[obj] = k
	}
	generation := k.generation
	cells := make([]cell, len(paths))
	var absent []int
	for i, p := range paths {
		var ok bool
		if cells[i], ok = k.cells[p]; !ok {
			absent = append(absent, i)
		}
	}
	s.mu.Unlock()
	if len(absent) == 0 {
		return cells, true
	}
	exists := false
	ctx.WithLock(obj, func() {
		item := lookup(ctx, obj)
		if item == nil {
			return
		}
		exists = true
		history, isHistory := item.(*TaskHistoryCollector)
		for _, i := range absent {
			if isHistory && paths[i] == "latestPage" {
				continue
			}
			var hidden bool
			if cells[i], hidden = s.visibility.hiddenCell(obj, paths[i]); !hidden {
				cells[i] = readCell(managed(item), paths[i])
			}
		}
		if isHistory {
			// The tasks of the page have their own locks.
			defer func() {
				for _, i := range absent {
					if paths[i] == "latestPage" {
						cells[i] = cell{xml: s.page(ctx, history)}
					}
				}
			}()
		}
	})
	if !exists {
		s.gone(obj)
		return nil, false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if k.generation == generation && cacheable(obj) {
		for _, i := range absent {
			k.cells[paths[i]] = cells[i]
		}
	}
	return cells, true
}

// cacheable is false for the objects that differ between sessions.
func cacheable(obj ref) bool {
	return obj.Type != "SessionManager" && obj.Type != "PropertyCollector"
}

// page makes the latest page of a history from its tasks, each of which is
// encoded once per change and not once per page.
func (s *values) page(ctx *simulator.Context, history *TaskHistoryCollector) string {
	var b strings.Builder
	b.WriteString(`<changeSet><name>latestPage</name><op>assign</op><val xsi:type="ArrayOfTaskInfo">`)
	for _, task := range history.latest() {
		cells, ok := s.read(ctx, task, []string{"info"})
		if !ok {
			continue
		}
		_, val, _ := strings.Cut(cells[0].xml, "<val")
		_, inner, _ := strings.Cut(val, ">")
		b.WriteString("<TaskInfo>" + strings.TrimSuffix(inner, "</val></changeSet>") + "</TaskInfo>")
	}
	for _, row := range s.stale.all() {
		b.WriteString(element("TaskInfo", row))
	}
	b.WriteString("</val></changeSet>")
	return b.String()
}

// refs reads the references at a path, if the object is of this type.
func refs(ctx *simulator.Context, obj ref, kind, path string) []ref {
	var list []ref
	ctx.WithLock(obj, func() {
		item := lookup(ctx, obj)
		if item == nil {
			return
		}
		rval := managed(item)
		if !isA(rval.Type(), kind) {
			return
		}
		val, err := valueAt(rval, path)
		if err != nil {
			return
		}
		switch v := val.(type) {
		case ref:
			list = []ref{v}
		case *vim.ArrayOfManagedObjectReference:
			list = append(list, v.ManagedObjectReference...)
		}
	})
	return list
}

func lookup(ctx *simulator.Context, obj ref) mo.Reference { return ctx.Session.Get(obj) }

// managed finds the API's own type within the simulator's.
func managed(item mo.Reference) reflect.Value {
	if o, ok := item.(interface{ Get() mo.Reference }); ok {
		item = o.Get()
	}
	rval := reflect.ValueOf(item).Elem()
	for path.Base(rval.Type().PkgPath()) != "mo" {
		rval = rval.Field(0)
		if rval.Kind() == reflect.Pointer {
			rval = rval.Elem()
		}
	}
	return rval
}

func managedType(item mo.Reference) reflect.Type {
	rtype := reflect.TypeOf(item).Elem()
	for path.Base(rtype.PkgPath()) != "mo" {
		rtype = rtype.Field(0).Type
		if rtype.Kind() == reflect.Pointer {
			rtype = rtype.Elem()
		}
	}
	return rtype
}

// isA is true for the type of this name and for those that extend it.
func isA(rtype reflect.Type, name string) bool {
	if rtype.Name() == name {
		return true
	}
	field, ok := rtype.FieldByName(name)
	return ok && field.Anonymous
}

var errNoProperty = errors.New("no such property")

func readCell(rval reflect.Value, p string) cell {
	val, err := valueAt(rval, p)
	if err != nil {
		return cell{state: cellMissing, xml: element("missingSet", vim.MissingProperty{
			Path:  p,
			Fault: vim.LocalizedMethodFault{Fault: &vim.InvalidProperty{Name: p}},
		})}
	}
	state := cellSet
	if val == nil {
		state = cellUnset
	}
	return cell{state: state, xml: element("changeSet", vim.PropertyChange{Name: p, Op: vim.PropertyChangeOpAssign, Val: val})}
}

func element(name string, content any) string {
	var b bytes.Buffer
	if err := vimxml.NewEncoder(&b).EncodeElement(content, vimxml.StartElement{Name: vimxml.Name{Local: name}}); err != nil {
		// All types of the API can be encoded.
		panic(err)
	}
	return b.String()
}

func escaped(text string) string {
	var b bytes.Buffer
	_ = xml.EscapeText(&b, []byte(text))
	return b.String()
}

// valueAt follows a property path, with or without a key; nil is unset.
func valueAt(rval reflect.Value, p string) (any, error) {
	var field mo.Field
	if !field.FromString(p) {
		return nil, errNoProperty
	}
	rval, err := walk(rval, field.Path)
	if err != nil || !rval.IsValid() {
		return nil, err
	}
	if field.Key == nil {
		return wrapped(rval), nil
	}
	item, err := keyed(rval, field.Key)
	if err != nil || !item.IsValid() {
		return nil, err
	}
	if field.Item != "" {
		if item, err = walk(item, field.Item); err != nil || !item.IsValid() {
			return nil, err
		}
		return wrapped(item), nil
	}
	return item.Interface(), nil
}

// walk follows the names of a path; an invalid value is unset.
func walk(rval reflect.Value, p string) (reflect.Value, error) {
	for name := range strings.SplitSeq(p, ".") {
		rval = settled(rval)
		if !rval.IsValid() {
			return rval, nil
		}
		if rval.Kind() != reflect.Struct || name == "" {
			return rval, errNoProperty
		}
		rval = rval.FieldByName(strings.ToUpper(name[:1]) + name[1:])
		if !rval.IsValid() {
			return rval, errNoProperty
		}
	}
	rval = settled(rval)
	if rval.IsValid() && rval.Kind() == reflect.String && rval.Len() == 0 {
		return reflect.Value{}, nil
	}
	return rval, nil
}

// settled follows interfaces and pointers; an invalid value is a nil one.
func settled(rval reflect.Value) reflect.Value {
	for rval.Kind() == reflect.Interface || rval.Kind() == reflect.Pointer {
		if rval.IsNil() {
			return reflect.Value{}
		}
		rval = rval.Elem()
	}
	return rval
}

func keyed(rval reflect.Value, key any) (reflect.Value, error) {
	if rval.Kind() != reflect.Slice {
		return rval, errNoProperty
	}
	for i := range rval.Len() {
		item := settled(rval.Index(i))
		if !item.IsValid() || item.Kind() != reflect.Struct {
			return item, errNoProperty
		}
		field := item.FieldByName("Key")
		if !field.IsValid() {
			return item, errNoProperty
		}
		if field.Interface() == key {
			return item, nil
		}
	}
	return reflect.Value{}, nil
}

// wrapped converts lists to the type that they have as the value of a property.
func wrapped(rval reflect.Value) any {
	if rval.Kind() != reflect.Slice {
		return rval.Interface()
	}
	kind := strings.TrimPrefix(rval.Type().Elem().Name(), "Base")
	switch rval.Type().Elem().Kind() {
	case reflect.Uint8:
		kind = "Byte"
	case reflect.Int16:
		kind = "Short"
	case reflect.Int32:
		kind = "Int"
	case reflect.Int64:
		kind = "Long"
	case reflect.String:
		if kind == "string" {
			kind = "String"
		}
	default:
	}
	array, ok := vim.TypeFunc()("ArrayOf" + kind)
	if !ok {
		return rval.Interface()
	}
	a := reflect.New(array)
	field := a.Elem().FieldByName(kind)
	if !rval.Type().AssignableTo(field.Type()) {
		rval = rval.Convert(field.Type())
	}
	field.Set(rval)
	return a.Interface()
}
