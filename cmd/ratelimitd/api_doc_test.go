package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"github.com/ratelimitd/ratelimitd/internal/testkit/racetest"
	adminv1 "github.com/ratelimitd/ratelimitd/proto/ratelimitd/admin/v1"
)

// docs/reference/admin-api.md names every service, method, field and enum value of the admin API.
func TestAdminAPIIsDocumented(t *testing.T) {
	racetest.Sequential(t)
	page := filepath.Join("..", "..", "docs", "reference", "admin-api.md")
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	names := 0
	want := func(shown string, what protoreflect.Descriptor) {
		t.Helper()
		names++
		if !strings.Contains(string(text), shown) {
			t.Errorf("%s does not have %s: %q", page, what.FullName(), shown)
		}
	}
	protoregistry.GlobalFiles.RangeFilesByPackage(adminv1.File_ratelimitd_admin_v1_admin_proto.Package(), func(file protoreflect.FileDescriptor) bool {
		for i := range file.Services().Len() {
			s := file.Services().Get(i)
			want("\n## "+string(s.FullName())+"\n", s)
			for j := range s.Methods().Len() {
				want("\n| `"+string(s.Methods().Get(j).Name())+"` |", s.Methods().Get(j))
			}
		}
		for i := range file.Messages().Len() {
			fields := file.Messages().Get(i).Fields()
			for j := range fields.Len() {
				want("`"+string(fields.Get(j).Name())+"`", fields.Get(j))
			}
		}
		for i := range file.Enums().Len() {
			values := file.Enums().Get(i).Values()
			for j := range values.Len() {
				if v := values.Get(j); v.Number() != 0 {
					want("`"+string(v.Name())+"`", v)
				}
			}
		}
		return true
	})
	if names < 60 {
		t.Errorf("only %d names", names)
	}
}

// The OpenAPI of the admin API has every method, with the body of its answer and of its errors.
func TestOpenAPIHasEveryMethodAndItsErrors(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("..", "..", "docs", "reference", "admin-api.swagger.json"))
	if err != nil {
		t.Fatal(err)
	}
	type answer struct {
		Schema struct {
			Ref string `json:"$ref"`
		} `json:"schema"`
	}
	var api struct {
		Paths map[string]struct {
			Post struct {
				Responses map[string]answer `json:"responses"`
			} `json:"post"`
		} `json:"paths"`
	}
	if err := json.Unmarshal(text, &api); err != nil {
		t.Fatal(err)
	}
	protoregistry.GlobalFiles.RangeFilesByPackage(adminv1.File_ratelimitd_admin_v1_admin_proto.Package(), func(file protoreflect.FileDescriptor) bool {
		for i := range file.Services().Len() {
			s := file.Services().Get(i)
			for j := range s.Methods().Len() {
				path := "/" + string(s.FullName()) + "/" + string(s.Methods().Get(j).Name())
				answers := api.Paths[path].Post.Responses
				if answers["200"].Schema.Ref == "" || answers["default"].Schema.Ref != "#/definitions/v1Error" {
					t.Errorf("%s: answers %v", path, answers)
				}
			}
		}
		return true
	})
}
