{# A seed replaces its table in one commit: the rows are a temporary view first. #}

{% macro spark_lance__create_csv_table(model, agate_table) %}
  {{ return('') }}
{% endmacro %}


{% macro spark_lance__reset_csv_table(model, full_refresh, old_relation, agate_table) %}
  {{ return('') }}
{% endmacro %}


{% macro spark_lance__load_csv_rows(model, agate_table) %}
  {{ return('') }}
{% endmacro %}


{% materialization seed, adapter='spark_lance' %}
  {%- set old_relation = load_cached_relation(this) -%}
  {%- set target_relation = this.incorporate(type='table') -%}
  {%- set agate_table = load_agate_table() -%}
  {%- do store_result('agate_table', response='OK', agate_table=agate_table) -%}

  {{ run_hooks(pre_hooks) }}

  {% if old_relation is not none and old_relation.is_view %}
    {% do exceptions.raise_compiler_error("seed " ~ model.name ~ " needs the name of a view: drop view " ~ old_relation) %}
  {% endif %}

  {%- set rows = make_temp_relation(target_relation, '__dbt_seed') -%}
  {% do adapter.create_seed_view(rows, agate_table) %}
  {%- call statement('main') -%}
    create or replace table {{ target_relation }}
    {{ lance_table_clauses() }}
    as
    select
    {%- for name in agate_table.column_names %}
      {{ lance_seed_column(model, agate_table, name, loop.index0) }}{{ ',' if not loop.last }}
    {%- endfor %}
    from {{ rows }}
  {%- endcall -%}
  {% do adapter.drop_relation(rows) %}

  {% do apply_grants(target_relation, config.get('grants'), should_revoke(old_relation, full_refresh_mode=True)) %}
  {% do persist_docs(target_relation, model) %}

  {{ run_hooks(post_hooks) }}

  {{ return({'relations': [target_relation]}) }}
{% endmaterialization %}


{# A text that its column's type cannot hold fails the seed, also outside ANSI mode. #}
{% macro lance_seed_column(model, agate_table, name, index) %}
  {%- set type = model['config'].get('column_types', {}).get(name, adapter.convert_type(agate_table, index)) -%}
  {%- set text = adapter.quote(name) -%}
  {%- if type | lower in ('string', 'text') -%}
    {{ text }}
  {%- else -%}
    case when {{ text }} is null then null
      else coalesce(try_cast({{ text }} as {{ type }}),
        cast(raise_error(concat('column {{ lance_text(name) }}: ', {{ text }}, ' is not a {{ type }}')) as {{ type }}))
    end as {{ text }}
  {%- endif -%}
{% endmacro %}
