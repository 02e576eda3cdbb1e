"""No template hangs a worker, fills its memory or reaches Python: each of these ends as an error that names the template."""

import re

import pytest

from flujo_client.config.models import TemplateSettings
from flujo_client.errors import TemplateError
from flujo_worker.agents.prompts import render_text
from flujo_worker.runtime.attempt_run import AttemptRun, CallSettings
from tests.support.performing import performing

TOO_MUCH = {
    "loops in loops": "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "text in loops": "{% for a in range(9999) %}" + "x" * 1000 + "{% endfor %}",
    "text kept in a block": "{% set t %}{% for a in range(9999) %}" + "x" * 1000 + "{% endfor %}{% endset %}",
    "a macro that calls itself twice": "{% macro m(n) %}{% if n %}{% if m(n - 1) %}{% endif %}{% if m(n - 1) %}{% endif %}{% endif %}{% endmacro %}{{ m(60) }}",
    "doubling by a block": "{% set ns = namespace(t='xx') %}{% for i in range(60) %}{% set t %}{{ ns.t }}{{ ns.t }}{% endset %}{% set ns.t = t %}{% endfor %}",
    "doubling by ~": "{% set ns = namespace(t='xx') %}{% for i in range(60) %}{% set ns.t = ns.t ~ ns.t %}{% endfor %}",
    "doubling by +": "{% set ns = namespace(t='xx') %}{% for i in range(60) %}{% set ns.t = ns.t + ns.t %}{% endfor %}",
    "doubling a list": "{% set ns = namespace(t=[1]) %}{% for i in range(60) %}{% set ns.t = ns.t + ns.t %}{% endfor %}",
    "doubling by join": "{% set ns = namespace(t='xx') %}{% for i in range(60) %}{% set ns.t = [ns.t, ns.t] | join %}{% endfor %}",
    "doubling by nesting": "{% set ns = namespace(t=['xx']) %}{% for i in range(60) %}{% set ns.t = [ns.t, ns.t] %}{% endfor %}{{ ns.t }}",
    "doubling by a mapping": "{% set ns = namespace(t={}) %}{% for i in range(60) %}{% set ns.t = {'a': ns.t, 'b': ns.t} %}{% endfor %}{{ ns.t | tojson }}",
    "doubling by a tuple": "{% set ns = namespace(t=1) %}{% for i in range(60) %}{% set ns.t = (ns.t, ns.t) %}{% endfor %}{{ ns.t }}",
    "a long text many times": "{% set t = 'x' * 99999 %}{{ ([t] * 99999) | tojson }}",
    "less than no text": "{% for i in range(9) %}{% set t = 'x' * -(10 ** 12) %}{% endfor %}{{ 'x' * 2000000 }}",
    "squaring": "{% set ns = namespace(n=9) %}{% for i in range(60) %}{% set ns.n = ns.n * ns.n %}{% endfor %}",
    "a long text": "{{ 'x' * 10 ** 12 }}",
    "a long list": "{{ ([0] * 10 ** 12) | length }}",
    "text times text": "{{ 10 ** 12 * 'x' }}",
    "a high power": "{{ 9 ** 9 ** 9 ** 9 ** 9 }}",
    "join": "{{ range(99999) | join('x' * 99999) }}",
    "replace": "{{ ('x' * 99999) | replace('x', 'x' * 99999) }}",
    "a huge template": "x" * 300_000,
}
TOO_DEEP = {
    "a macro that calls itself": "{% macro m() %}{{ m() }}{{ m() }}{% endmacro %}{{ m() }}",
    "a recursive loop": "{% set ns = namespace(t=[1]) %}{% for x in [[1]] recursive %}{{ loop([[1], [1]]) }}{% endfor %}",
    "a block that shows itself": "{% block b %}{{ self.b() }}{{ self.b() }}{% endblock %}",
    "a deep expression": "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
}
REFUSED = {
    "formatting": "{{ '%1000000000d' % 1 }}",
    "a number from a long text": "{{ (('f' * 99999) | int(base=16)) // 3 }}",
    "format": "{{ '{:1000000000}'.format(1) }}",
    "center": "{{ 'x'.center(10 ** 12) }}",
    "ljust, mapped": "{{ ['ljust'] | map('center', 10 ** 12) | list }}",
    "lipsum": "{{ lipsum(n=10 ** 9) }}",
    "rounding": "{{ 1.5 | round(10 ** 9, 'floor') }}",
    "adding up lists": "{{ [[1], [2]] | sum(start=[]) }}",
    "a class": "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "a global": "{{ range.__globals__.x() }}",
    "data that is called": "{{ data() }}",
}


def rendering_by(section):
    """Be in an attempt of a project with these settings of templates."""
    return performing(AttemptRun(settings=CallSettings(template=section)))


def refusal(source):
    with rendering_by(TemplateSettings(undefined_variables="strict")), pytest.raises(TemplateError) as refused:
        render_text(source, data=["sk-secret"])
    return str(refused.value)


@pytest.mark.parametrize("source", TOO_MUCH.values(), ids=TOO_MUCH)
def test_a_template_without_end_has_one(source):
    assert "'given as text': too much for one prompt: " in refusal(source)


@pytest.mark.parametrize("source", TOO_DEEP.values(), ids=TOO_DEEP)
def test_a_template_that_goes_too_deep_comes_back(source):
    assert "RecursionError" in refusal(source)


@pytest.mark.parametrize("source", REFUSED.values(), ids=REFUSED)
def test_what_a_prompt_does_not_need_is_not_there(source):
    said = refusal(source)
    assert re.search("SecurityError|TypeError|No filter named|is undefined", said)
    assert "sk-secret" not in said


def test_a_namespace_in_another_prints_as_one():
    source = "{% set o = namespace(t=1) %}{% for i in range(60) %}{% set o.t = namespace(a=o.t, b=o.t) %}{% endfor %}{{ o.t }}"
    assert render_text(source) == "<namespace>"


def test_time_is_bounded_too():
    source = "{% for a in range(9999) %}{{ (range(9999) | list)[:0] | length }}{% endfor %}"
    with (
        rendering_by(TemplateSettings(max_s=0.001)),
        pytest.raises(TemplateError, match="more seconds than are allowed for a prompt"),
    ):
        render_text(source)


def test_a_prompt_may_have_just_so_many_characters():
    with rendering_by(TemplateSettings(max_chars=10)):
        assert render_text("{{ t }}", t="x" * 10) == "x" * 10
        with pytest.raises(TemplateError, match="more characters than are allowed for a prompt"):
            render_text("{{ t }}", t="x" * 11)


def test_what_prompts_need_is_there():
    """The filters, methods and statements that a prompt's author expects."""
    source = """
{%- macro row(a, b='-') %}{{ a }}:{{ b }};{% endmacro -%}
{% for k, v in d.items() %}{{ row(k, v | upper) }}{% endfor %}
{{ d | dictsort | first | join('=') }} {{ ('a', 'b') | join(', ') }} {{ l | map('upper') | list | tojson }}
{{ l | selectattr('x') | list | length if false else l | length }} {{ 1 + 2 * 3 ** 2 % 5 }} {{ 'a' ~ 1 ~ none }}
{{ 'one two'.split()[1].title() }} {{ 'x' | indent(2, true) }} {{ 2.345 | round(1) }} {{ 'abc' | replace('b', '') }}
{% for x in range(3) %}{% if x == 1 %}{% continue %}{% endif %}{{ loop.cycle('a', 'b') }}{{ x }}{% endfor %}
"""
    assert render_text(source, d={"k": "v"}, l=["p", "q"]) == (
        'k:V;k=v a, b ["P", "Q"]\n2 4 a1None\nTwo   x 2.3 ac\na0a2'
    )


def test_values_with_markup_are_neither_escaped_nor_compiled():
    """Untrusted text is data: a template in it stays text."""
    text = "<b>{{ 7 * 7 }}{% include 'x' %}</b> & 'q'"
    assert render_text("{{ t }}{{ l | join }}", t=text, l=[text]) == text * 2
