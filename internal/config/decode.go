package config

import (
	"errors"
	"fmt"
	"math"
	"reflect"
	"strings"
	"time"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
)

// document is the file as it is written: accounts stay nodes until the
// defaults that they inherit have been read.
type document struct {
	Config
	Accounts map[string]ast.Node `yaml:"accounts"`
}

// decoder puts YAML nodes into Go values and collects everything it refuses,
// each with its line and the full path of its key. go-yaml's own decoder
// stops at the first problem, knows no paths, cuts 1.5 down to 1 for an
// integer, and sets everything to zero for an empty document. Messages never
// repeat a value: it may be a secret that was put in the wrong place.
type decoder struct {
	file     string
	problems []error
}

// parse returns the file's root node; nil for an empty file.
func (d *decoder) parse(b []byte) ast.Node {
	f, err := parser.ParseBytes(b, 0)
	var at yaml.Error
	switch {
	case errors.As(err, &at) && at.GetToken() != nil:
		d.problems = append(d.problems, fmt.Errorf("%s:%d: %s", d.file, at.GetToken().Position.Line, at.GetMessage()))
		return nil
	case err != nil:
		d.problems = append(d.problems, fmt.Errorf("%s: is not YAML", d.file))
		return nil
	case len(f.Docs) > 1:
		d.problems = append(d.problems, fmt.Errorf("%s: holds %d YAML documents; it must be one", d.file, len(f.Docs)))
		return nil
	case len(f.Docs) == 0:
		return nil
	}
	if _, comments := f.Docs[0].Body.(*ast.CommentGroupNode); comments {
		return nil
	}
	return f.Docs[0].Body
}

var (
	durationType = reflect.TypeFor[time.Duration]()
	nodeType     = reflect.TypeFor[ast.Node]()
)

// decode sets v from n. What n does not mention, or leaves empty, keeps the
// value it has.
func (d *decoder) decode(path string, n ast.Node, v reflect.Value) {
	if v.Type() == nodeType {
		v.Set(reflect.ValueOf(n))
		return
	}
	if n == nil || n.Type() == ast.NullType {
		return
	}
	switch {
	case v.Type() == durationType:
		d.duration(path, n, v)
	case v.Kind() == reflect.Struct:
		d.mapping(path, n, func(key string, value ast.Node) bool {
			field := fieldByKey(v, key)
			if field.IsValid() {
				d.decode(join(path, key), value, field)
			}
			return field.IsValid()
		})
	case v.Kind() == reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		d.mapping(path, n, func(key string, value ast.Node) bool {
			elem := reflect.New(v.Type().Elem()).Elem()
			d.decode(join(path, key), value, elem)
			v.SetMapIndex(reflect.ValueOf(key), elem)
			return true
		})
	case v.Kind() == reflect.Slice:
		d.sequence(path, n, v)
	default:
		d.scalar(path, n, v)
	}
}

// mapping hands each key and value of n to set, which says whether it knows
// the key.
func (d *decoder) mapping(path string, n ast.Node, set func(key string, value ast.Node) bool) {
	m, ok := n.(*ast.MappingNode)
	if !ok {
		d.refuse(n, path, "must be a mapping of keys to values")
		return
	}
	for _, pair := range m.Values {
		key, ok := pair.Key.(*ast.StringNode)
		if !ok {
			d.refuse(pair.Key, join(path, pair.Key.String()), "must be a plain string as a key")
			continue
		}
		if !set(key.Value, pair.Value) {
			d.refuse(key, join(path, key.Value), "is not a known key; see refundgate.example.yaml")
		}
	}
}

func (d *decoder) sequence(path string, n ast.Node, v reflect.Value) {
	seq, ok := n.(*ast.SequenceNode)
	if !ok {
		d.refuse(n, path, "must be a list")
		return
	}
	list := reflect.MakeSlice(v.Type(), len(seq.Values), len(seq.Values))
	for i, item := range seq.Values {
		d.decode(fmt.Sprintf("%s[%d]", path, i), item, list.Index(i))
	}
	v.Set(list)
}

func (d *decoder) duration(path string, n ast.Node, v reflect.Value) {
	s, ok := n.(*ast.StringNode)
	if ok {
		span, err := time.ParseDuration(s.Value)
		if err == nil {
			v.SetInt(int64(span))
			return
		}
	}
	d.refuse(n, path, "must be a duration with a unit, such as 200ms, 3s or 15m")
}

func (d *decoder) scalar(path string, n ast.Node, v reflect.Value) {
	switch v.Kind() {
	case reflect.String:
		if s, ok := n.(*ast.StringNode); ok {
			v.SetString(s.Value)
			return
		}
		d.refuse(n, path, "must be a string; put it in quotes if it looks like something else")
	case reflect.Bool:
		if b, ok := n.(*ast.BoolNode); ok {
			v.SetBool(b.Value)
			return
		}
		d.refuse(n, path, "must be true or false")
	case reflect.Int:
		if i, ok := integer(n); ok {
			v.SetInt(i)
			return
		}
		d.refuse(n, path, "must be a whole number")
	case reflect.Float64:
		if i, ok := integer(n); ok {
			v.SetFloat(float64(i))
			return
		}
		if f, ok := n.(*ast.FloatNode); ok {
			v.SetFloat(f.Value)
			return
		}
		d.refuse(n, path, "must be a number")
	default:
		panic("config: no rule for " + v.Type().String())
	}
}

func integer(n ast.Node) (int64, bool) {
	i, ok := n.(*ast.IntegerNode)
	if !ok {
		return 0, false
	}
	switch x := i.Value.(type) {
	case int64:
		return x, true
	case uint64: // what go-yaml makes of every number without a minus
		return int64(x & math.MaxInt64), x <= math.MaxInt64
	}
	return 0, false
}

// fieldByKey returns the field of the struct v that the YAML key names, or
// the zero Value.
func fieldByKey(v reflect.Value, key string) reflect.Value {
	for i := range v.NumField() {
		field := v.Type().Field(i)
		if field.Anonymous {
			if f := fieldByKey(v.Field(i), key); f.IsValid() {
				return f
			}
		} else if field.Tag.Get("yaml") == key && key != "-" {
			return v.Field(i)
		}
	}
	return reflect.Value{}
}

func (d *decoder) refuse(n ast.Node, path, sentence string) {
	where := d.file
	if t := n.GetToken(); t != nil && t.Position != nil {
		where = fmt.Sprintf("%s:%d", d.file, t.Position.Line)
	}
	d.problems = append(d.problems, fmt.Errorf("%s: %s %s", where, shown(path), sentence))
}

// shown is the path as it appears in a message. A key may be anything a file
// can hold, so it is bounded and kept to one line.
func shown(path string) string {
	if path == "" {
		return "the file"
	}
	const longest = 100
	if len(path) > longest {
		path = strings.ToValidUTF8(path[:longest], "") + "..."
	}
	if quoted := fmt.Sprintf("%q", path); quoted != `"`+path+`"` {
		return quoted
	}
	return path
}

func join(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}
