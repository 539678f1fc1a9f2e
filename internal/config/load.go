package config

import (
	"errors"
	"fmt"
	"os"
	"reflect"
	"slices"
	"strings"

	"github.com/go-sql-driver/mysql"
)

// Environment variables that override the file. Temporal's own are described
// at Temporal.
const (
	EnvConfig = "REFUNDGATE_CONFIG"    // the file's path, if none is given
	EnvDSN    = "REFUNDGATE_MYSQL_DSN" // the whole DSN, password included
)

// Load reads the file at path, applies the environment and validates the
// result. Without a path it reads the file that REFUNDGATE_CONFIG names, and
// without that it starts from Default. env is os.Getenv or a stand-in.
//
// The error says in one sentence a line everything that is wrong.
func Load(path string, env func(string) string) (Config, error) {
	if path == "" {
		path = env(EnvConfig)
	}
	cfg := Default()
	if path != "" {
		b, err := os.ReadFile(path)
		if err != nil {
			return Config{}, fmt.Errorf("reading the configuration: %w", err)
		}
		if cfg, err = decode(path, b); err != nil {
			return Config{}, err
		}
	}
	if err := cfg.MySQL.applyEnv(env); err != nil {
		return Config{}, err
	}
	if err := cfg.Temporal.applyEnv(env); err != nil {
		return Config{}, err
	}
	if err := cfg.Validate(); err != nil {
		return Config{}, err
	}
	return cfg, nil
}

// decode reads a file's content over the defaults; file is its name for
// messages.
func decode(file string, b []byte) (Config, error) {
	d := &decoder{file: file}
	doc := document{Config: Default()}
	d.decode("", d.parse(b), reflect.ValueOf(&doc).Elem())
	cfg := doc.Config
	for name, node := range doc.Accounts {
		account := cfg.Defaults
		d.decode("accounts."+name, node, reflect.ValueOf(&account).Elem())
		account.Name = name
		cfg.Accounts = append(cfg.Accounts, account)
	}
	slices.SortFunc(cfg.Accounts, func(a, b Account) int { return strings.Compare(a.Name, b.Name) })
	if len(d.problems) > 0 {
		return Config{}, errors.Join(d.problems...)
	}
	return cfg, nil
}

// WithoutPassword returns the DSN as it may be shown and written down.
func (m MySQL) WithoutPassword() string {
	dsn, err := mysql.ParseDSN(m.DSN.Reveal())
	if err != nil {
		return "" // it is shown, so in doubt it holds nothing
	}
	dsn.Passwd = ""
	return dsn.FormatDSN()
}

// applyEnv completes the DSN: from the environment as it is, or the file's
// with the password from where the file says.
func (m *MySQL) applyEnv(env func(string) string) error {
	if dsn := env(EnvDSN); dsn != "" {
		if _, err := mysql.ParseDSN(dsn); err != nil {
			return errors.New(EnvDSN + " is not a DSN such as user:password@tcp(host:3306)/refundgate")
		}
		m.DSN = Secret(dsn)
		return nil
	}
	if m.DSN == "" {
		return nil
	}
	dsn, err := mysql.ParseDSN(m.DSN.Reveal())
	if err != nil {
		return errors.New("mysql.dsn is not a DSN such as user@tcp(host:3306)/refundgate")
	}
	if dsn.Passwd != "" {
		return errors.New("mysql.dsn must not hold a password; put it where mysql.password_env or mysql.password_file says, or give the whole DSN in " + EnvDSN)
	}
	if m.PasswordEnv != "" && m.PasswordFile != "" {
		return errors.New("mysql.password_env and mysql.password_file are both set; keep one")
	}
	password, err := readSecret(m.PasswordEnv, m.PasswordFile, env)
	if err != nil {
		return fmt.Errorf("mysql: reading the password: %w", err)
	}
	dsn.Passwd = password.Reveal()
	m.DSN = Secret(dsn.FormatDSN())
	return nil
}
